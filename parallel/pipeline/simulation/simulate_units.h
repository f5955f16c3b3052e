// When shard units are gathered, accumulate and are reduced in a simulation (simulate.cpp).
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "parallel/pipeline/program/pieces.h"
#include "parallel/pipeline/simulation/simulate_state.h"

namespace weft::walking {

class UnitInstants {
 public:
  // The program outlives the instants.
  explicit UnitInstants(const Program& program)
      : program_(program),
        gathered_(program.units.size() + program.stages.size()),
        accumulating_(program.units.size(), false),
        reduced_(program.units.size()),
        units_of_stage_(program.stages.size()) {
    for (std::size_t unit = 0; unit < program.units.size(); ++unit) {
      units_of_stage_.at(program.units[unit].stage).push_back(unit);
    }
  }

  // In a solved step a gather takes memory that any earlier action of the list has released.
  bool takes_all_room(const Action& gather) const {
    return gather.unit && program_.units[*gather.unit].policy.residency == Residency::solved;
  }
  void gathered(const Action& gather, const Instant& end) {
    if (!gather.unit) gathered_[slot_of_stage(*gather.stage)] = end;
    for_units_of(gather, [&](std::size_t unit) {
      if (takes_room(unit)) gathered_[unit] = end;
    });
  }
  bool gives_room(const Action& reshard) const {
    bool gives = !reshard.unit;
    for_units_of(reshard, [&](std::size_t unit) { gives = gives || takes_room(unit); });
    return gives;
  }

  // A computation waits for the gathers that it reads, and for `given_up`, the reduction whose memory its first
  // gradient of a unit takes.
  void wait_for(const Action& action, const Piece& piece, const Instant& given_up, Start& start) {
    if (!piece.segment) {
      if (reads_parameters(action.op)) start.after(gathered_[slot_of_stage(piece.stage)], Wait::gather);
      return;
    }
    const ProgramSegment& segment = program_.segments[*piece.segment];
    const bool reads = reads_units(segment, action.op) && (action.segment || takes_part(segment, action.op));
    for (int unit : segment.units) {
      if (reads) start.after(gathered_[unit], Wait::gather);
      if (!makes_weight_gradient(action.op) || accumulating_[unit]) continue;
      accumulating_[unit] = true;
      if (pools_accumulator(unit)) start.after(given_up, Wait::reduction);
    }
  }

  // Returns the number of inputs that stay in the pool behind the reduction.
  int reduced(const Action& reduction, const Instant& end) {
    int inputs = 0;
    for_units_of(reduction, [&](std::size_t unit) {
      const bool accumulated = accumulating_[unit] && pools_accumulator(unit);
      accumulating_[unit] = false;
      reduced_[unit].push_back(end);
      if (accumulated || program_.units[unit].reduce_input_bytes > 0) ++inputs;
    });
    return inputs;
  }
  void wait_for_reductions(const Action& wait, Start& start) {
    for_units_of(wait, [&](std::size_t unit) {
      if (reduced_[unit].empty()) return;
      start.after(reduced_[unit].front(), Wait::reduction);
      reduced_[unit].pop_front();
    });
  }

  // The rank of the other copy of a tied weight; absent if `rank` holds both.
  std::optional<std::size_t> tied_peer(int rank, const Action& tie) const {
    std::optional<std::size_t> peer;
    for_units_of(tie, [&](std::size_t unit) {
      if (!program_.units[unit].tied_to) return;
      const int other = tied_rank(program_, program_.units[unit]);
      if (other != rank) peer = other;
    });
    return peer;
  }
  bool ties_unreduced(const Action& tie) const {
    bool any = false;
    for_units_of(tie, [&](std::size_t unit) { any = any || program_.units[unit].tied_unreduced; });
    return any;
  }

 private:
  bool pools_accumulator(std::size_t unit) const {
    const ProgramUnit& entry = program_.units[unit];
    return !entry.replicated && !entry.frozen && entry.gradient_bytes > 0;
  }
  bool takes_room(std::size_t unit) const {
    return !program_.units[unit].replicated && program_.units[unit].unsharded_bytes > 0;
  }
  std::size_t slot_of_stage(int stage) const { return program_.units.size() + stage; }

  // An action without a unit applies to all units of its stage.
  template <typename Function>
  void for_units_of(const Action& action, Function function) const {
    if (action.unit) return function(*action.unit);
    for (std::size_t unit : units_of_stage_[*action.stage]) function(unit);
  }

  const Program& program_;
  std::vector<Instant> gathered_;             // by unit, then by stage for gathers that name no unit
  std::vector<bool> accumulating_;            // by unit
  std::vector<std::deque<Instant>> reduced_;  // by unit: its reductions not waited for yet, oldest first
  std::vector<std::vector<std::size_t>> units_of_stage_;
};

}  // namespace weft::walking
