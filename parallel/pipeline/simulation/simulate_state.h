// The state of a simulation (simulate.cpp): instants, connections and ranks.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/simulation/simulate.h"

namespace weft::walking {

// A time, and the action that ended at that time.
struct Instant {
  double time = 0.0;
  std::optional<ActionAt> end_of = {};
};

// The latest instant that an action waits for; of equal ones the first that was named.
struct Start {
  Instant at;
  Wait wait = Wait::nothing;
  std::vector<ActionAt>* all = nullptr;  // if set, collects all waits

  void after(const Instant& instant, Wait reason) {
    if (all != nullptr && instant.end_of) all->push_back(*instant.end_of);
    if (instant.time <= at.time) return;
    at = instant;
    wait = reason;
  }
};

// Messages from one rank to another on one pair of lanes, named by the sender's lane. At most one is in flight, and
// they arrive in order.
struct Connection {
  int from = 0, to = 0;
  Lane lane = Lane::send_activations_up;
  std::optional<std::pair<int, int>> under_way = {};  // stage that sends, microbatch
  Instant sent = {};                                  // start of its send
  ActionAt send = {};                                 // its send
  Instant taken = {};                                 // end of the last receive
  double arrived = 0.0;                               // arrival of the last message, if the link delays it
};

struct RankState {
  std::size_t next = 0;                                     // position in its list
  std::array<Instant, all_lanes.size()> channel_free = {};  // by channel
  Instant compute = {};                                     // end of the last action of the compute lane
  Instant room = {};                                        // the last RESHARD that released memory
  Instant reduced = {};                                     // end of the last reduction
  std::deque<Instant> in_flight = {};                       // reductions with inputs in the pool, oldest first
  Instant given_up = {};                                    // the last reduction that the pool has given up
  std::vector<std::size_t> connections = {};                // indices into Walk::connections_
  std::optional<Start> tie = {};                            // set while waiting for the other rank at TIE_GRAD
  std::optional<Start> norm = {};                           // set while waiting for other ranks at GRAD_NORM
  Overlaps overlaps = {};                                   // only without exchange; messages determine it otherwise
  std::vector<Action> made = {};                            // results to pass on when the pair is over
  bool queued = false;
};

}  // namespace weft::walking
