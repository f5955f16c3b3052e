// What the walk of a simulation (simulate.cpp) knows of instants, connections and ranks while it goes.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/simulation/simulate.h"

namespace weft::walking {

// When something has happened, and the action whose end that was.
struct Instant {
  double time = 0.0;
  std::optional<ActionAt> end_of = {};
};

// The latest of what an action waits for; of equal ones the first that was named.
struct Start {
  Instant at;
  Wait wait = Wait::nothing;
  std::vector<ActionAt>* all = nullptr;  // of what it waits for, where somebody asks

  void after(const Instant& instant, Wait reason) {
    if (all != nullptr && instant.end_of) all->push_back(*instant.end_of);
    if (instant.time <= at.time) return;
    at = instant;
    wait = reason;
  }
};

// Messages from one rank to another on one pair of lanes, which is named by the sender's. At most one is under way, and
// they arrive in order.
struct Connection {
  int from = 0, to = 0;
  Lane lane = Lane::send_activations_up;
  std::optional<std::pair<int, int>> under_way = {};  // stage that sends, microbatch
  Instant sent = {};                                  // when its send began
  ActionAt send = {};                                 // that one
  Instant taken = {};                                 // when the last one had been received
  double arrived = 0.0;                               // when it was there, where the link delays it
};

struct RankState {
  std::size_t next = 0;                                     // in its list
  std::array<Instant, all_lanes.size()> channel_free = {};  // by channel
  Instant compute = {};                                     // the end of the last action of the compute lane
  Instant room = {};                                        // the last RESHARD that gave some back
  Instant reduced = {};                                     // the last reduction
  std::deque<Instant> in_flight = {};                       // reductions whose inputs the pool holds, oldest first
  Instant given_up = {};                                    // the last one whose input the pool has given up
  std::vector<std::size_t> connections = {};                // into Walk::connections_
  std::optional<Start> tie = {};                            // while it waits for the other rank at TIE_GRAD
  std::optional<Start> norm = {};                           // while it waits for others at GRAD_NORM
  Overlaps overlaps = {};                                   // of an order alone: messages tell the rest
  std::vector<Action> made = {};                            // not handed on before the pair is over
  bool queued = false;
};

}  // namespace weft::walking
