// The state of a simulation (simulate.cpp): instants, connections and ranks; shard units; results of stages.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/program/pieces.h"
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
  std::map<std::pair<int, int>, Instant> rows = {};  // ends of exchanges that a part waits for: segment, microbatch
  std::map<std::pair<int, int>, Instant> left = {}, back = {};  // ends of OFFLOAD and RELOAD: segment, microbatch
  std::map<std::pair<int, Lane>, Connection> connections = {};  // from here, by receiving rank and own lane
  std::optional<Start> tie = {};                                // set while waiting for other ranks at TIE_GRAD
  std::optional<Start> norm = {};                               // set while waiting for other ranks at GRAD_NORM
  Overlaps overlaps = {};         // only without exchange; messages determine it otherwise
  std::vector<Action> made = {};  // results to pass on when the pair is over
  bool queued = false;
};

// When shard units are gathered, accumulate and are reduced.
class UnitInstants {
 public:
  // The program outlives the instants.
  explicit UnitInstants(const Program& program)
      : program_(program),
        gathered_(program.units.size()),
        accumulating_(program.units.size(), false),
        reduced_(program.units.size()) {}

  // In a solved step a gather takes memory that any earlier action of the list has released.
  bool takes_all_room(std::size_t unit) const { return program_.units[unit].policy.residency == Residency::solved; }
  // Whether gathers take room, which reshards give back.
  bool takes_room(std::size_t unit) const {
    return !program_.units[unit].replicated && program_.units[unit].unsharded_bytes > 0;
  }
  void gathered(std::size_t unit, const Instant& end) {
    if (takes_room(unit)) gathered_[unit] = end;
  }

  // A computation waits for the gathers that it reads, and for `given_up`, the reduction whose memory its first
  // gradient of a unit takes.
  void wait_for(const Action& action, const ScheduledPiece& piece, const Instant& given_up, Start& start) {
    if (!piece.segment) return;
    const ProgramSegment& segment = program_.segments[*piece.segment];
    const bool reads = reads_units(segment, action.op) && (action.segment || takes_part(segment, action.op));
    for (int unit : segment.units) {
      if (reads) start.after(gathered_[unit], Wait::gather);
      if (!makes_weight_gradient(action.op) || !action.part.last() || accumulating_[unit]) continue;
      accumulating_[unit] = true;
      if (pools_accumulator(unit)) start.after(given_up, Wait::reduction);
    }
  }

  // Returns whether an input stays in the pool behind the reduction.
  bool reduced(std::size_t unit, const Instant& end) {
    const bool accumulated = accumulating_[unit] && pools_accumulator(unit);
    accumulating_[unit] = false;
    reduced_[unit].push_back(end);
    return accumulated || program_.units[unit].reduce_input_bytes > 0;
  }
  void wait_for_reduction(std::size_t unit, Start& start) {
    if (reduced_[unit].empty()) return;
    start.after(reduced_[unit].front(), Wait::reduction);
    reduced_[unit].pop_front();
  }

  // The copies of a tied parameter, and the ranks that hold them.
  struct Tie {
    std::vector<int> copies, ranks;
    bool unreduced = false;  // ProgramUnit::tied_unreduced
  };
  Tie tie_of(std::size_t unit) const {
    const ProgramUnit& entry = program_.units[unit];
    return {entry.copies, tied_ranks(program_, entry), entry.tied_unreduced};
  }

 private:
  bool pools_accumulator(std::size_t unit) const {
    const ProgramUnit& entry = program_.units[unit];
    return !entry.replicated && !entry.frozen && entry.gradient_bytes > 0;
  }

  const Program& program_;
  // By unit.
  std::vector<Instant> gathered_;
  std::vector<bool> accumulating_;
  std::vector<std::deque<Instant>> reduced_;  // the reductions not waited for yet, oldest first
};

// When the results of each stage and microbatch exist, and when they have arrived.
class DataInstants {
 public:
  // `exchanged`: the program has messages; otherwise data is available as soon as it is made. Program and pieces
  // outlive the instants.
  DataInstants(const Program& program, const PieceTable& pieces, bool exchanged)
      : program_(program),
        pieces_(pieces),
        exchanged_(exchanged),
        activations_(program.stages.size() * program.microbatches),
        gradients_(activations_.size()),
        received_activations_(activations_.size()),
        received_gradients_(activations_.size()) {}

  // A computation's result for the next stage or the stage before.
  void made(const Action& action, const Instant& end) {
    (action.op == Op::forward ? activations_ : gradients_)[token(*action.stage, action)] = end;
  }
  void received(const Action& action, const Instant& end) {
    auto& received = action.op == Op::receive_forward ? received_activations_ : received_gradients_;
    received[token(*action.stage, action)] = end;
  }

  // Of a computation. False as long as its data from another stage is missing.
  bool wait_for(const Action& action, Start& start) const {
    if (!action.part.first()) return true;
    const auto [first, end] = pieces_.of(action);
    const bool enters = action.op == Op::forward && first == pieces_.begin(*action.stage);
    const bool returns = makes_input_gradient(action.op) && end == pieces_.end(*action.stage);
    if (!enters && !returns) return true;
    const std::optional<Instant>* data = data_of(action);
    if (data == nullptr) return true;
    if (*data) start.after(**data, Wait::message);
    return data->has_value();
  }

 private:
  std::size_t token(std::size_t stage, const Action& action) const {
    return stage * program_.microbatches + *action.microbatch;
  }

  // When the data of a computation was there; null if it needs none.
  const std::optional<Instant>* data_of(const Action& action) const {
    const int stage = *action.stage;
    const auto needed = read_by(action, static_cast<int>(program_.stages.size()));
    if (!needed) return nullptr;
    if (exchanged_ && program_.stages[needed->stage].rank != program_.stages[stage].rank) {
      return &(needed->forward ? received_activations_ : received_gradients_)[token(stage, action)];
    }
    return &(needed->forward ? activations_ : gradients_)[token(needed->stage, action)];
  }

  const Program& program_;
  const PieceTable& pieces_;
  bool exchanged_;
  // By stage, then microbatch: when its results were made, and when its data was received.
  std::vector<std::optional<Instant>> activations_, gradients_, received_activations_, received_gradients_;
};

// An action as shared_seconds sees it (shared_adapters.cpp).
struct ToldAction {
  double seconds = 0.0;                  // duration if nothing else uses the adapters
  double adapter_seconds = 0.0;          // the part of `seconds` with the adapters
  int adapters = 0;                      // the adapters used, if adapter_seconds > 0
  std::vector<std::size_t> after = {};   // actions that end before it starts
  std::optional<std::size_t> send = {};  // of a receive: it starts and ends no earlier than this
  std::optional<std::size_t> rows = {};  // the exchange that ends no later than `before_rows` after its start
  double before_rows = 0.0;
  std::optional<std::size_t> meeting = {};  // number shared by actions that wait for each other
};

// Seconds of each action from its start to its end. Every action must be able to run: the walk has checked that.
std::vector<double> shared_seconds(const std::vector<ToldAction>& actions);

}  // namespace weft::walking
