#include <fmt/format.h>

#include <utility>

#include "parallel/pipeline/check/check_parts.h"

namespace weft {
namespace {

// A shard unit in the state of this rank. A stage without segments has none: a bare schedule is not held to gathers.
struct UnitState {
  const ProgramUnit* entry;
  int pieces = 0;                // number of pieces of this rank that add to its gradient
  std::vector<int> copies = {};  // of a tied unit on this rank, itself among them: one TIE_GRAD serves all

  const std::string& name() const { return entry->name; }
  // Any of its intervals may end at any time.
  bool solved() const { return entry->policy.residency == Residency::solved; }

  bool gathered = false;
  bool in_island = false;                 // its parts are kept by the ranks of an island
  bool gradient_pending = false;          // an addition since the last scatter or reduction
  bool sum_pending = false;               // a scatter since the last reduction
  bool reduced = false, tied = false;     // at all in this step
  int reducing = 0;                       // number of reductions not waited for yet
  std::vector<int> additions = {};        // number, by microbatch
  int completed = 0, completed_then = 0;  // microbatches with all additions made: now, and at the last reduction
};

class UnitWalk : RowWalk {
 public:
  UnitWalk(const CheckContext& context, int row, std::vector<Finding>& findings) : RowWalk(context, row, findings) {
    for (const ProgramUnit& unit : program_.units) units_.push_back({.entry = &unit, .copies = copies_on_row(unit)});
    for (std::size_t piece = 0; piece < context_.pieces.size(); ++piece) {
      const ScheduledPiece& p = context_.pieces[piece];
      if (!p.segment || !context_.runs(row_, p.stage)) continue;
      for (int unit : segment_units(*p.segment)) ++units_[unit].pieces;
    }
  }

  void run() {
    const auto& actions = context_.list(row_);
    for (index_ = 0; index_ < actions.size(); ++index_) {
      const Action& action = actions[index_];
      if (!context_.legible(row_, action)) continue;
      require_before_update(action.op);
      switch (action.op) {
        case Op::unshard:
        case Op::unshard_secondary:
          for (UnitState* unit : units_of(action)) unshard(*unit, action.op);
          break;
        case Op::reshard:
        case Op::reshard_secondary:
          for (UnitState* unit : units_of(action)) reshard(*unit, action.op);
          break;
        case Op::scatter_gradient:
        case Op::reduce_gradient:
          for (UnitState* unit : units_of(action)) reduce(*unit, action.op);
          break;
        case Op::tie_gradient:
          tie(units_of(action));
          break;
        case Op::wait_reduction:
          for (UnitState* unit : units_of(action)) wait(*unit);
          break;
        case Op::gradient_norm:
          normed_ = true;
          require_reduced();
          break;
        case Op::optimizer_step:
          stepped_ = true;
          require_reduced();
          break;
        default:
          if (is_compute(action.op)) compute(action);
      }
    }
    require_reduced();
    for (const UnitState& unit : units_) {
      if (unit.gathered) found(Violation::unsharded_at_end, "{} is still gathered at the end", unit.name());
      if (unit.in_island) {
        found(Violation::unsharded_at_end, "{} still lies in its island at the end", unit.name());
      }
    }
  }

 private:
  std::vector<int> copies_on_row(const ProgramUnit& unit) const {
    std::vector<int> here = unit.copies;
    std::erase_if(here, [&](int copy) { return !context_.runs(row_, program_.units[copy].stage); });
    return here;
  }

  const std::vector<int>& segment_units(int segment) const { return program_.segments[segment].units; }

  // The units of a gather, reshard or reduction.
  std::vector<UnitState*> units_of(const Action& action) {
    if (action.unit) return {&units_[*action.unit]};
    std::vector<UnitState*> result;
    for (std::size_t i = 0; i < program_.units.size(); ++i) {
      const ProgramUnit& unit = program_.units[i];
      bool meant = is_gather(action.op) || is_reshard(action.op) ? !unit.replicated : !unit.frozen;
      if (action.op == Op::tie_gradient) meant = !unit.copies.empty();
      if (meant && unit.stage == *action.stage) result.push_back(&units_[i]);
    }
    return result;
  }

  void unshard(UnitState& unit, Op op) {
    if (unit.entry->replicated) {
      found(Violation::double_unshard, "{} is replicated and never gathered", unit.name());
    } else if (unit.gathered) {
      found(Violation::double_unshard, "{} is gathered already", unit.name());
    } else if (unit.in_island != (op == Op::unshard_secondary)) {
      found(Violation::wrong_gather,
            unit.in_island ? fmt::format("{} lies in its island, and is gathered from there", unit.name())
                           : fmt::format("{} is gathered over its island, which holds nothing of it", unit.name()));
    }
    unit.gathered = !unit.entry->replicated;
    unit.in_island = false;
  }

  void reshard(UnitState& unit, Op op) {
    if (unit.entry->replicated) {
      found(Violation::reshard_of_sharded, "{} is replicated and never gathered", unit.name());
    } else if (!unit.gathered) {
      found(Violation::reshard_of_sharded, "{} is not gathered", unit.name());
    }
    unit.in_island = unit.gathered && op == Op::reshard_secondary;
    unit.gathered = false;
  }

  void compute(const Action& action) {
    const auto [begin, end] = context_.pieces.of(action);
    for (std::size_t piece = begin; piece < end; ++piece) {
      const ScheduledPiece& p = context_.pieces[piece];
      if (!p.segment) continue;
      const ProgramSegment& segment = program_.segments[*p.segment];
      const bool reads = reads_units(segment, action.op) && (action.segment || takes_part(segment, action.op));
      for (int unit : segment.units) use(units_[unit], action, reads);
    }
  }

  void use(UnitState& unit, const Action& action, bool reads) {
    if (reads && !unit.entry->replicated && !unit.gathered) {
      found(Violation::used_while_sharded, "{} is read while it is sharded", unit.name());
    }
    if (!makes_weight_gradient(action.op) || !action.part.last() || unit.entry->frozen) return;
    unit.gradient_pending = true;
    unit.additions.resize(program_.microbatches, 0);
    if (++unit.additions[*action.microbatch] == unit.pieces) ++unit.completed;
  }

  // An interval ends with the last microbatch and after every `reduce_every`-th. A scatter may end any microbatch if
  // the policy has scatters.
  void reduce(UnitState& unit, Op op) {
    if (unit.entry->frozen) {
      found(Violation::repeated_reduction, "{} is frozen and never reduced", unit.name());
      return;
    }
    if (unit.tied && !unit.entry->tied_unreduced) {
      found(Violation::tied_too_early, "{} is reduced after its TIE_GRAD", unit.name());
    }
    if (unit.entry->tied_unreduced && !std::exchange(unit.tied, true)) {
      found(Violation::missing_tie, "{} is reduced before its TIE_GRAD", unit.name());
    }
    const bool scatters = op == Op::scatter_gradient;
    if (scatters && !unit.entry->policy.accumulate_sharded) {
      found(Violation::reduced_too_early, "{} is scattered, but its gradients add up unsharded between reductions",
            unit.name());
    }
    const int microbatches = unit.completed - unit.completed_then;
    const bool at_end = unit.completed == program_.microbatches;
    const int reduce_every = unit.entry->policy.reduce_every;
    const bool at_period = reduce_every > 0 && unit.completed % reduce_every == 0;
    if (!unit.gradient_pending && (scatters || !unit.sum_pending)) {
      found(Violation::repeated_reduction, "nothing was added to {} since its last reduction", unit.name());
    } else if (unit.solved()) {
      // The unit's plan decides.
    } else if ((unit.gradient_pending && microbatches == 0) || (!scatters && !at_end && !at_period)) {
      found(Violation::reduced_too_early, "{} is reduced after {} of {} microbatches; its policy is {}", unit.name(),
            unit.completed, program_.microbatches,
            reduce_every > 0 ? fmt::format("after every {}", reduce_every) : std::string("after the last"));
    }
    unit.gradient_pending = false;
    unit.sum_pending = scatters;
    unit.completed_then = unit.completed;
    unit.reduced = true;
    ++unit.reducing;
  }

  void tie(const std::vector<UnitState*>& units) {
    tied_ = true;
    if (units.empty()) found(Violation::repeated_tie, "no unit of the stage has a copy on another one");
    for (UnitState* unit : units) {
      if (unit->entry->copies.empty()) {
        found(Violation::repeated_tie, "{} has no copy on another stage", unit->name());
        continue;
      }
      for (const int index : unit->copies) {
        UnitState* copy = &units_[index];
        if (copy->tied) {
          found(Violation::repeated_tie, "{} holds the sum of its copies already", copy->name());
        } else if (copy->entry->tied_unreduced && copy->completed < program_.microbatches) {
          found(Violation::tied_too_early, "{} of {} microbatches have been added to {}", copy->completed,
                program_.microbatches, copy->name());
        } else if (!copy->entry->tied_unreduced && (!copy->reduced || copy->gradient_pending || copy->sum_pending)) {
          found(Violation::tied_too_early, "the gradient of {} is not reduced yet", copy->name());
        }
        copy->tied = true;
      }
    }
  }

  void wait(UnitState& unit) {
    if (unit.reducing > 0) {
      --unit.reducing;
    } else {
      found(Violation::idle_wait, "no reduction of {} is under way", unit.name());
    }
  }

  // The norm is the first to read the reduced gradients.
  void require_reduced() {
    for (UnitState& unit : units_) {
      if (unit.entry->frozen || (!unit.gradient_pending && !unit.sum_pending)) continue;
      found(Violation::missing_reduction, "the gradient of {} was added to but not reduced", unit.name());
      unit.gradient_pending = unit.sum_pending = false;
    }
    for (UnitState& unit : units_) {
      if (unit.entry->copies.empty() || !unit.reduced || std::exchange(unit.tied, true)) continue;
      found(Violation::missing_tie, "{} has a copy on another stage and no TIE_GRAD", unit.name());
    }
  }

  void require_before_update(Op op) {
    if (tied_ && (is_compute(op) || is_message(op) || is_row_exchange(op) || is_gather(op))) {
      found(Violation::tied_too_early, "{} comes after TIE_GRAD, whose other ranks may wait for it", name_of(op));
    }
    if (stepped_) {
      found(Violation::step_too_early, "{} comes after STEP", name_of(op));
    } else if (op == Op::optimizer_step && !normed_) {
      found(Violation::step_too_early, "STEP comes before GRAD_NORM, which sets the clip factor");
    } else if (normed_ && op != Op::optimizer_step && !is_reshard(op)) {
      found(Violation::step_too_early, "{} comes after GRAD_NORM, which waits for all ranks", name_of(op));
    }
  }

  std::vector<UnitState> units_;  // by unit of the program
  bool tied_ = false, normed_ = false, stepped_ = false;
};

}  // namespace

void check_units(const CheckContext& context, int row, std::vector<Finding>& findings) {
  UnitWalk(context, row, findings).run();
}

}  // namespace weft
