// A step in time before it runs: discrete events over a program. Each rank runs its list on channels. A channel runs
// one action at a time, in the order of the list. Besides its channel an action waits for the same things as in a run
// with its fences (ARCHITECTURE.md, "Devices and lanes"):
//
//   compute      the messages with its data; the gathers of the units it reads; if it begins an accumulator that the
//                pool of reductions counts (parallel/shard/reduce_inputs.h), the reductions that the pool has given up
//   WAIT_REDUCE  the unit's oldest reduction not waited for yet. It takes a turn on the compute lane, but no time
//   gather       the last RESHARD before it in the list; in a solved step (Residency::solved) all compute before it
//   RESHARD      the compute before it in the list. It takes no time and no turn on its channel
//   reduction    the compute before it in the list
//   send         the compute before it in the list, and the receipt of the previous message of its lane and ranks
//   receive      its send, with which it begins: a transfer occupies a lane at both ends. On a channel that compute
//                shares, a send only posts, and the receiver alone takes the time, or the link does (LaneChannels)
//   TIE_GRAD     the TIE_GRAD of the rank with the other copy, which runs at the same time, unless this rank holds
//                both; for gradients that are not reduced yet, the compute before it in the list
//   ROWS_*       the compute before it in the list. The next part of its computation waits for it, except that what
//                needs no rows (seconds_before_rows, costs.h) may run until then
//   OFFLOAD      the compute before it in the list, and so does RELOAD
//   WAIT_OFFLOAD its OFFLOAD; takes a turn on the compute lane, but no time. A backward or R waits for the RELOAD
//   GRAD_NORM    the reductions and ties before it in the list, and all ranks that come to one
//
// Transfers that leave a node at the same time share its adapters, across lanes and pipeline ranks of the node. Each of
// n transfers proceeds at one n-th of the rate (shared_adapters.cpp). An action first does its work without adapters:
// its products, the latencies of its collectives, and the extra time of links inside a node.
//
// Nothing waits for a gather or RESHARD of a unit without unsharded bytes. In a program without exchange (an order
// alone), data reaches the next stage when it is made. That of an overlapped pair (overlap.h) does when both halves are
// over. Such a pair begins when both halves have their data. With exchange both follow from the positions of the
// messages.
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

// The channel of each lane: two lanes with one number take turns in the order of the list.
struct LaneChannels {
  LaneNumbers channel = {};
  // For messages on a channel that compute shares. The link carries them one after the other, each for its time, and
  // the receiver waits only until they have arrived.
  bool link_delays = false;

  std::uint8_t of(Lane lane) const { return channel[static_cast<std::size_t>(lane)]; }
  bool with_compute(Lane lane) const { return of(lane) == of(Lane::compute); }

  // Every lane its own channel: a GPU.
  static LaneChannels own() { return {own_numbers}; }
  // One channel for all: the CPU, where a rank is a thread.
  static LaneChannels serial() { return {}; }
  bool operator==(const LaneChannels&) const = default;
};

// The last thing that an action waited for, after its channel was free.
enum class Wait : std::uint8_t {
  nothing,
  message,    // data from another rank, or the receipt of the previous message
  gather,     // the gather of a unit that it reads
  compute,    // the compute before a send, a reduction, a tie or a RESHARD
  reduction,  // a reduction that holds the accumulator, or that the norm or WAIT_REDUCE waits for
  room,       // memory for a gather: the last RESHARD, or in a solved step all compute
  peers,      // other ranks: all for a norm, one for a tie
  rows,       // the exchange of rows before a part of a computation
  host,       // a copy of kept bytes to or from host memory
};
constexpr auto enum_names(Wait) {
  return name_list("nothing", "message", "gather", "compute", "reduction", "room", "peers", "rows", "host");
}

struct ActionAt {
  int rank = 0;           // pipeline rank
  std::size_t index = 0;  // in its list
  bool operator==(const ActionAt&) const = default;
};

struct SimulatedAction {
  double start = 0.0, end = 0.0;  // seconds since the step began
  double waited = 0.0;            // seconds from the time its channel was free to `start`
  Wait wait = Wait::nothing;
  // The action that ends at this action's start: the one it waited for, or the previous one on its channel. An exchange
  // of rows may end up to seconds_before_rows later. A receive
  // that waited for its send starts with the send, so this is what the send waited for. For a norm or a tie that waited
  // for peers, it is what the last peer waited for.
  std::optional<ActionAt> after = {};
  // The seconds of `waited` due to gathers, reductions, exchanges of rows and host copies. An action counts those after
  // its messages had arrived, a norm those before it waited for the other ranks.
  double for_collectives = 0.0;

  bool operator==(const SimulatedAction&) const = default;
};

struct Simulation {
  std::vector<std::vector<SimulatedAction>> ranks;  // one per action of the program
  double seconds = 0.0;                             // of the step

  bool operator==(const Simulation&) const = default;
};

// Throws Error (failure) if a rank waits forever (check.h says why), an action is malformed (pieces.h), or the costs do
// not fit the tables. Takes linear time in the number of actions n; with adapters n log n.
Simulation simulate(const Program& program, const ProgramCosts& costs,
                    const LaneChannels& channels = LaneChannels::own());

// Seconds of an action in which it keeps the adapters of its node busy, at their full rate. In a transfer only the
// sender does, except on a channel that compute shares: there only the receiver does.
double adapter_seconds(const ProgramTables& tables, const ProgramCosts& costs, const LaneChannels& channels,
                       const Action& action);
// The sum of adapter_seconds over a step, of the node with the largest sum. No simulated step is shorter.
double busiest_adapters(const Program& program, const ProgramCosts& costs,
                        const LaneChannels& channels = LaneChannels::own());

// One rank's step in seconds; the members add up to Simulation::seconds.
struct RankTimes {
  double compute = 0.0;     // F, B, I, W, R
  double bubble = 0.0;      // compute waits, but not for a collective: for messages, or at either end of the step
  double gathers = 0.0;     // compute waits for gathers, or runs them if they share its channel
  double reductions = 0.0;  // compute or the norm waits for reductions, or runs them
  double rows = 0.0;        // compute waits for rows of experts on their way beside it, or exchanges them
  double host = 0.0;        // compute waits for kept bytes on their way to or from host memory, or copies them
  double update = 0.0;      // GRAD_NORM and STEP
};
// What computation waits for beside it: seconds of the rank with most, for each cause apart.
struct StepWaits {
  double gathers = 0.0, reductions = 0.0, rows = 0.0, host = 0.0;

  void raise_to(const RankTimes& times);
  double total() const { return gathers + reductions + rows + host; }
  bool operator==(const StepWaits&) const = default;
};
// `channels` are those of the simulation.
RankTimes rank_times(const Program& program, const Simulation& simulation, int rank,
                     const LaneChannels& channels = LaneChannels::own());

// From the last action that ends back to the first, each of which let the next one start. In the order of time.
std::vector<ActionAt> critical_path(const Simulation& simulation);

// A picture of an order in characters: the computation of each rank along time. A forward takes one unit of time and a
// backward two (one for each half). Exchange costs nothing. Blank space is the bubble. An overlapped pair begins when
// both have their data and passes its results on when both are over. In between the two are drawn one after the other,
// because the time that an overlap saves is not known here.
//
// `program` holds only the stage-level compute actions of an order (at_detail with compute_only), and possibly R.
// Throws Error (failure) on a deadlock.
//
// One line per pipeline rank, a fixed number of characters per unit of time. A character group is the microbatch of an
// F (plain), B or I (in brackets), W (in angles) or R (in braces).
std::string format_timeline(const Program& program);

}  // namespace weft
