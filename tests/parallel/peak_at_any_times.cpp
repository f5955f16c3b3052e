#include "tests/parallel/peak_at_any_times.h"

#include <algorithm>
#include <vector>

#include "parallel/pipeline/program/pieces.h"

namespace weft {
namespace {

// At any instant, let `i` be the last action in the list that takes memory and has begun. All memory then held was
// taken by `i` or in front of it, and was not known to be released when `i` began. Known releases follow from the waits
// of `i` (simulate.h):
//
//   of a compute action or a reduction   the compute before it has ended, so its RESHARDs have happened
//   of a RELOAD                          all compute before it has ended
//   of a gather                          the compute before the last RESHARD has ended; in a solved step, all before it
//   of a reduction                       the reductions before it have ended
//   of compute that waited for the pool  the reductions that the pool had given up have ended; later compute knows
//                                        that, too, and a gather knows as much as the compute before the last RESHARD
class BoundWalk {
 public:
  explicit BoundWalk(const Program& program)
      : program_(program),
        pieces_(program),
        gathered_(program.units.size(), false),
        in_island_(program.units.size(), false),
        accumulating_(program.units.size(), false),
        waits_(program.units.size(), 0) {}

  void run(const Action& action) {
    if (is_compute(action.op)) compute(action);
    if (is_gather(action.op)) for_units_of(action, [&](std::size_t unit) { gather(unit); });
    if (is_reshard(action.op)) for_units_of(action, [&](std::size_t unit) { reshard(unit, action.op); });
    if (is_reduction(action.op)) for_units_of(action, [&](std::size_t unit) { reduce(unit); });
    if (action.op == Op::wait_reduction) for_units_of(action, [&](std::size_t unit) { know_ended_through(unit); });
    if (action.op == Op::gradient_norm) know_ended(reductions_.size());
    if (action.op == Op::wait_offload) change_activations(-bytes_away(action));
    if (action.op == Op::reload) {
      change_activations(bytes_away(action));
      look(reductions_from(in_flight_, ended_));
    }
  }

  std::int64_t peak() const { return peak_; }

 private:
  struct Reduction {
    std::size_t unit = 0;
    std::int64_t accumulator = 0, copy = 0;
    bool pooled = false;
  };

  const ProgramUnit& entry(std::size_t unit) const { return program_.units[unit]; }
  // The segment of a piece; the piece must be a segment.
  const ProgramSegment& segment_of(std::size_t piece) const {
    return program_.segments[static_cast<std::size_t>(*pieces_[piece].segment)];
  }

  void look(std::int64_t more) { peak_ = std::max(peak_, parameters_ + activations_ + accumulators_ + more); }

  // `sum`, plus the largest output among reductions that compute does not know to have ended: one of them may be
  // running.
  std::int64_t reductions_from(std::int64_t sum, std::size_t first) const {
    std::int64_t part = 0;
    for (std::size_t i = first; i < reductions_.size(); ++i) {
      part = std::max(part, entry(reductions_[i].unit).reduce_part_bytes);
    }
    return sum + part;
  }

  void compute(const Action& action) {
    const auto [begin, end] = pieces_.of(action);
    for (std::size_t piece = begin; piece < end; ++piece) {
      if (!pieces_[piece].segment) continue;
      const ProgramSegment& segment = segment_of(piece);
      if (action.op == Op::forward && action.part.first()) change_activations(segment.activation_bytes);
      if (action.op == Op::recompute && action.part.first() && segment.region) {
        change_activations(segment.activation_bytes - segment.checkpoint_bytes);
      }
      const bool reads = reads_units(segment, action.op);
      for (int unit : segment.units) {
        if (reads) leave_island(static_cast<std::size_t>(unit));
      }
      if (!makes_weight_gradient(action.op) || !action.part.last()) continue;
      for (int index : segment.units) {
        const auto unit = static_cast<std::size_t>(index);
        if (accumulating_[unit]) continue;
        accumulating_[unit] = true;
        accumulators_ += entry(unit).gradient_bytes;
        if (!entry(unit).replicated && !entry(unit).frozen && entry(unit).gradient_bytes > 0) know_ended(given_up_);
      }
    }
    look(reductions_from(in_flight_, ended_));
    if (!action.part.last()) return;
    if (program_.forward_only) {
      for (std::size_t piece = begin; piece < end; ++piece) {
        if (pieces_[piece].segment) change_activations(-segment_of(piece).activation_bytes);
      }
      return;
    }
    for (std::size_t piece = begin; piece < end && action.op == Op::forward; ++piece) {
      if (!pieces_[piece].segment) continue;
      change_activations(forward_bytes(segment_of(piece)) - segment_of(piece).activation_bytes);
    }
    // As the action ends, piece by piece: bytes kept for the weight gradient may exceed the activations they replace.
    for (std::size_t piece = end; piece-- > begin;) {
      if (!pieces_[piece].segment) continue;
      const ProgramSegment& segment = segment_of(piece);
      if (makes_input_gradient(action.op)) change_activations(segment.pending_bytes - segment.activation_bytes);
      look(reductions_from(in_flight_, ended_));
      if (makes_weight_gradient(action.op)) change_activations(-segment.pending_bytes);
    }
  }

  std::int64_t bytes_away(const Action& action) const {
    return program_.segments[static_cast<std::size_t>(*action.segment)].offload_bytes;
  }
  void change_activations(std::int64_t bytes) {
    activations_ += bytes;
    most_since_reshard_ = std::max(most_since_reshard_, activations_);
  }
  // Activations that may still exist for a gather that only waits for the last RESHARD, beyond the current ones.
  std::int64_t freed_since_reshard() const { return most_since_reshard_ - activations_; }

  void gather(std::size_t unit) {
    if (entry(unit).replicated || gathered_[unit]) return;
    gathered_[unit] = true;
    parameters_ += entry(unit).unsharded_bytes;
    if (entry(unit).policy.residency == Residency::solved) {
      look(reductions_from(in_flight_, ended_));
    } else {
      look(freed_since_reshard() + reductions_from(in_flight_ + ended_since_reshard_, ended_at_reshard_));
    }
  }

  // A gather over the island holds both for an instant. Compute knows it to be over once compute has waited for the
  // gather.
  void leave_island(std::size_t unit) {
    if (!gathered_[unit] || !in_island_[unit]) return;
    in_island_[unit] = false;
    parameters_ -= entry(unit).island_bytes;
  }

  void reshard(std::size_t unit, Op op) {
    if (entry(unit).replicated || !gathered_[unit]) return;
    leave_island(unit);
    gathered_[unit] = false;
    if (op == Op::reshard_secondary) {
      in_island_[unit] = true;
      parameters_ += entry(unit).island_bytes;
      look(freed_since_reshard() + reductions_from(in_flight_, ended_));
    }
    parameters_ -= entry(unit).unsharded_bytes;
    if (entry(unit).unsharded_bytes == 0) return;
    ended_since_reshard_ = 0;
    most_since_reshard_ = activations_;
    ended_at_reshard_ = ended_;
  }

  void reduce(std::size_t unit) {
    const std::int64_t accumulator = accumulating_[unit] ? entry(unit).gradient_bytes : 0;
    accumulating_[unit] = false;
    accumulators_ -= accumulator;
    const bool pooled = entry(unit).reduce_input_bytes > 0 || (!entry(unit).replicated && accumulator > 0);
    reductions_.push_back({unit, accumulator, entry(unit).reduce_input_bytes, pooled});
    in_flight_ += accumulator + entry(unit).reduce_input_bytes;
    look(reductions_from(in_flight_, ended_));
    if (pooled) ++pooled_;
    while (pooled_ > program_.reduce_inputs) {
      if (reductions_[given_up_++].pooled) --pooled_;
    }
  }

  void know_ended(std::size_t reductions) {
    for (; ended_ < reductions; ++ended_) {
      const std::int64_t inputs = reductions_[ended_].accumulator + reductions_[ended_].copy;
      in_flight_ -= inputs;
      ended_since_reshard_ += inputs;
    }
  }

  // The unit's oldest reduction that was not waited for yet. If the pool holds its input, the pool releases that input
  // and all before it; otherwise nothing.
  void know_ended_through(std::size_t unit) {
    std::size_t& waited = waits_[unit];
    while (waited < reductions_.size() && reductions_[waited].unit != unit) ++waited;
    if (waited < reductions_.size() && reductions_[waited++].pooled) know_ended(waited);
  }

  template <typename Function>
  void for_units_of(const Action& action, Function function) const {
    if (action.unit) return function(static_cast<std::size_t>(*action.unit));
    for (std::size_t unit = 0; unit < program_.units.size(); ++unit) {
      if (entry(unit).stage == *action.stage) function(unit);
    }
  }

  const Program& program_;
  PieceTable pieces_;
  std::vector<bool> gathered_, in_island_, accumulating_;  // by unit
  std::vector<Reduction> reductions_;                      // in the order of the list
  std::vector<std::size_t> waits_;                         // by unit: position behind its last awaited reduction
  std::size_t ended_ = 0;                                  // number of reductions that compute knows to have ended
  std::size_t ended_at_reshard_ = 0;                       // the same number at the last RESHARD
  std::size_t given_up_ = 0;                               // number of reductions that the pool has given up
  int pooled_ = 0;                                         // number of the other reductions that are in the pool
  std::int64_t parameters_ = 0, activations_ = 0, accumulators_ = 0;
  std::int64_t in_flight_ = 0;            // inputs of reductions not known to have ended
  std::int64_t most_since_reshard_ = 0;   // largest activations since the last RESHARD
  std::int64_t ended_since_reshard_ = 0;  // inputs of reductions known to have ended since then
  std::int64_t peak_ = 0;
};

}  // namespace

std::int64_t peak_at_any_times(const Program& program, int rank) {
  BoundWalk walk(program);
  for (const Action& action : program.ranks.at(static_cast<std::size_t>(rank))) walk.run(action);
  return walk.peak();
}

}  // namespace weft
