// A step in time before it runs: discrete events over a program. Each rank works its list off on channels, one action
// at a time each and in the order of the list; what an action waits for besides its channel is what the run's fences
// make it wait for (ARCHITECTURE.md, "Devices and lanes"):
//
//   compute    the messages with its data; the gathers of the units it reads; and where it begins an accumulator that
//              the pool of reductions counts (parallel/shard/reduce_inputs.h), the reductions that the pool has given
//              up
//   WAIT_REDUCE  the unit's last reduction. It takes a turn on the compute lane, but no time
//   gather     the last RESHARD before it in the list; in a solved step (Residency::solved) all compute before it
//   RESHARD    the compute before it in the list. It takes no time and no turn on its channel
//   reduction  the compute before it in the list
//   send       the same, and that the message before it on its lane and between its ranks has been received
//   receive    its send, with which it begins: a transfer occupies a lane at both ends. On a channel that compute
//              shares, a send only posts, and the receiver alone takes the time, or the link (LaneChannels)
//   TIE_GRAD   the rank of the other copy, which goes through its own at the same time, unless this rank holds both;
//              of gradients that are not reduced yet, the compute before it in the list
//   GRAD_NORM  the reductions and ties before it in the list, and all ranks that come to one
//
// What leaves a node at the same time shares its adapters, whatever lanes and pipeline ranks of the node it is of: each
// of n transfers goes on at one n-th of the rate (shared_adapters.h). An action first does what needs no adapters: its
// products, the latencies of its collectives, and what the links inside a node take longer.
//
// Nothing waits for a gather or RESHARD of a unit without unsharded bytes. In a program without exchange (an order
// alone), data is there for the next stage when it is made, of an overlapped pair (overlap.h) when both are over; and a
// pair begins when both have their data. With exchange both follow from where its messages stand in the list.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/simulation/costs.h"

namespace weft {

// Which lanes share a channel, by lane: two lanes with one number take turns in the order of the list.
struct LaneChannels {
  std::array<std::uint8_t, all_lanes.size()> channel = {};
  // Of messages on a channel that compute shares: the link has them for their time, one after the other, and the
  // receiver stands still only until they are there.
  bool link_delays = false;

  static LaneChannels own();                 // every lane its own: a GPU
  static LaneChannels shared_collectives();  // gathers and reductions take turns, all else as own()
  static LaneChannels serial();              // one for all: the CPU, where a rank is a thread
  static LaneChannels delayed();             // the same, and the link between threads delays what they send
  bool operator==(const LaneChannels&) const = default;
};

// What held an action up last, after its channel was free.
enum class Wait : std::uint8_t {
  nothing,
  message,    // data from another rank, or its taking the message before
  gather,     // of a unit it reads
  compute,    // that makes what a send or a reduction takes away
  reduction,  // that holds the accumulator it needs, or that the norm waits for
  room,       // of a RESHARD before it in the list
  peers,      // the norm is over the world, a tie between two ranks
};
std::string_view name_of(Wait wait);

struct ActionAt {
  int rank = 0;           // pipeline rank
  std::size_t index = 0;  // in its list
  bool operator==(const ActionAt&) const = default;
};

struct SimulatedAction {
  double start = 0.0, end = 0.0;  // seconds since the step began
  double waited = 0.0;            // from where its channel was free to `start`
  Wait wait = Wait::nothing;
  // Whose end is its start: what it waited for, or the action before it on its channel. A receive that waited for its
  // send begins when that does, so for what let the send begin; a norm or a tie that waited for peers, for what the
  // last of them waited for.
  std::optional<ActionAt> after = {};
  // Of what it waited, what gathers and reductions cost: beyond where its messages had come, or before the other ranks
  // had.
  double for_collectives = 0.0;

  bool operator==(const SimulatedAction&) const = default;
};

struct Simulation {
  std::vector<std::vector<SimulatedAction>> ranks;  // one an action of the program
  double seconds = 0.0;                             // of the step

  bool operator==(const Simulation&) const = default;
};

// Throws Error (failure) when a rank waits for ever (check.h says why), when an action is malformed (pieces.h), or when
// the costs do not fit the tables. Linear in the number of actions; with adapters that number times its logarithm.
Simulation simulate(const Program& program, const ProgramCosts& costs,
                    const LaneChannels& channels = LaneChannels::own());

// Seconds of an action in which it keeps the adapters of its node busy, at their full rate. Of a transfer it is the
// sender that does, except on a channel that compute shares.
double adapter_seconds(const ProgramTables& tables, const ProgramCosts& costs, const LaneChannels& channels,
                       const Action& action);
// All of a step, of the node with most. No simulated step is shorter.
double busiest_adapters(const Program& program, const ProgramCosts& costs,
                        const LaneChannels& channels = LaneChannels::own());

// One rank's step, in seconds; all of them add up to Simulation::seconds.
struct RankTimes {
  double compute = 0.0;     // F, B, I, W
  double bubble = 0.0;      // compute stands still, not for a collective: for messages, or at either end of the step
  double gathers = 0.0;     // compute waits for gathers, or makes them where they share its channel
  double reductions = 0.0;  // compute, the norm included, waits for reductions, or makes them
  double update = 0.0;      // GRAD_NORM and STEP
};
// `channels` are those of the simulation.
RankTimes rank_times(const Program& program, const Simulation& simulation, int rank,
                     const LaneChannels& channels = LaneChannels::own());

// From the last action that ends back to the first: each one let the next start. In the order of time.
std::vector<ActionAt> critical_path(const Simulation& simulation);

}  // namespace weft
