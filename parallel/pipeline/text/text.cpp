#include "parallel/pipeline/text/text.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "parallel/pipeline/program/overlap.h"

namespace weft {
namespace {

// Without the mark of an overlapped action.
std::string format_plain(const Program& program, const Action& action) {
  std::string text;
  if (action.stage) text += std::to_string(*action.stage);
  text += name_of(action.op);
  if (action.microbatch) text += std::to_string(*action.microbatch);
  if (action.part.count > 1) text += fmt::format(".{}/{}", action.part.index + 1, action.part.count);
  // An index outside its table is shown as such, because the checker prints faulty actions.
  const auto append_name = [&text](const auto& entries, int index) {
    const bool known = index >= 0 && index < static_cast<int>(entries.size());
    text += known ? fmt::format("({})", entries[index].name) : fmt::format("(#{})", index);
  };
  if (action.segment) append_name(program.segments, *action.segment);
  if (action.unit) append_name(program.units, *action.unit);
  return text;
}

}  // namespace

std::string format_action(const Program& program, const Action& action) {
  const std::string text = format_plain(program, action);
  return action.overlapped ? fmt::format("({})OVERLAP_F_B", text) : text;
}

std::string format_actions(const Program& program, const std::vector<Action>& actions, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!text.empty()) text += separator;
    if (!pair_begins_at(actions, i)) {
      text += format_action(program, actions[i]);
      continue;
    }
    text += fmt::format("({};{})OVERLAP_F_B", format_plain(program, actions[i]), format_plain(program, actions[i + 1]));
    ++i;
  }
  return text;
}

namespace {

// A run is a stretch of segment actions that together are one action of a stage or one overlapped pair. Actions between
// them (such as the gather of the next segment's unit) are inside the run.
struct Run {
  std::size_t before = 0;  // number of the run of the last compute action at or before this place; 0: none yet
  bool inside = false;     // more of the same run follows
  std::optional<std::size_t> pair = {};  // index of the pair that the run is, if any
};

// R belongs to the input gradient behind it; R also stands between the segments of that.
bool same_stage_action(const Action& one, const Action& other) {
  const auto is_backward = [](Op op) { return op == Op::recompute || makes_input_gradient(op); };
  const bool same_kind = one.op == other.op || (is_backward(one.op) && is_backward(other.op));
  return same_kind && one.stage == other.stage && one.microbatch == other.microbatch && one.segment && other.segment;
}

std::vector<Run> runs_of(const std::vector<Action>& actions, const Overlaps& overlaps) {
  std::vector<Run> runs(actions.size());
  std::optional<std::size_t> previous;
  std::size_t number = 0, next = 0;  // `next`: first position behind the previous compute action
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!is_compute(actions[i].op)) continue;
    const auto pair = overlaps.pair_of[i];
    const bool continues =
        previous && (pair ? overlaps.pair_of[*previous] == pair : same_stage_action(actions[*previous], actions[i]));
    for (; next < i; ++next) runs[next] = {number, continues, continues ? pair : std::nullopt};
    if (!continues) ++number;
    runs[next++] = {number, false, pair};
    previous = i;
  }
  for (; next < actions.size(); ++next) runs[next] = {number, false};
  return runs;
}

// Builds the merged list from the actions of units; whole-stage actions are copied. A merged action may be withdrawn
// while its run lasts (one unit dropped and another gathered inside the run). So entries keep their positions and may
// become empty.
class Merger {
 public:
  void compute(const Action& action, const Run& run, const Overlaps& overlaps) {
    if (!run.pair) {
      compute_alone(action, run);
      return;
    }
    if (run.before == last_run_) return;
    last_run_ = run.before;
    // Both are put at once, so a stage gathered only for the second is gathered in front of both.
    const OverlappedPair& both = overlaps.pairs[*run.pair];
    in_front_ = merged_.size();
    merged_.emplace_back();
    if (both.recomputes)
      put({.op = Op::recompute, .stage = both.backward.stage, .microbatch = both.backward.microbatch});
    put(both.forward);
    put(both.backward);
    second_stage_ = both.backward.stage;
  }

  // R stands in front of its backward, even if the first segments of the backward need none.
  void compute_alone(const Action& action, const Run& run) {
    const bool fresh = run.before != last_run_, again = action.op == Op::recompute;
    last_run_ = run.before;
    if (fresh) {
      backward_in_run_ = again_in_run_ = false;
      again_ = merged_.size();
      merged_.emplace_back();
    }
    if (again && !std::exchange(again_in_run_, true)) merged_[again_] = of_stage(action);
    if (!again && !std::exchange(backward_in_run_, true)) put(action);
  }

  void unshard(const Action& action, const Run& run) {
    StageState& stage = stages_[action.stage.value()];
    const bool first = stage.gathered++ == 0;
    const bool resumes = first && stage.drop && run.inside && stage.dropped_in == run.before;
    if (resumes) merged_[*stage.drop].reset();
    stage.drop.reset();
    if (first && !resumes && run.pair && run.inside && action.stage == second_stage_) {
      stage.gather = in_front_;
      merged_[in_front_] = of_stage(action);
    } else if (first && !resumes) {
      stage.gather = put(action);
    } else {
      merged_[stage.gather]->bytes += action.bytes;
    }
  }

  void reshard(const Action& action, const Run& run) {
    StageState& stage = stages_[action.stage.value()];
    if (stage.gathered > 0 && --stage.gathered > 0) return;
    stage.drop = put(action);
    stage.dropped_in = run.before;
  }

  // The reductions of a run become one, at the position of the last.
  void reduce(Action action, const Run& run) {
    StageState& stage = stages_[action.stage.value()];
    if (stage.reduction && stage.reduced_in == run.before && merged_[*stage.reduction]->op == action.op) {
      action.bytes += merged_[*stage.reduction]->bytes;
      merged_[*stage.reduction].reset();
    }
    stage.reduction = put(action);
    stage.reduced_in = run.before;
  }

  // Any other action stays where it is. Returns its position.
  std::size_t put(const Action& action) {
    merged_.push_back(of_stage(action));
    return merged_.size() - 1;
  }

  std::vector<Action> result() const {
    std::vector<Action> actions;
    for (const auto& action : merged_) {
      if (action) actions.push_back(*action);
    }
    return actions;
  }

 private:
  static Action of_stage(Action action) {
    action.part = {};
    action.segment.reset();
    action.unit.reset();
    return action;
  }

  struct StageState {
    int gathered = 0;                                        // number of units
    std::size_t gather = 0, dropped_in = 0, reduced_in = 0;  // position of the UNSHARD; numbers of runs
    std::optional<std::size_t> drop, reduction;              // positions of the last RESHARD and REDUCE_GRAD
  };

  std::vector<std::optional<Action>> merged_;
  std::map<int, StageState> stages_;
  std::size_t last_run_ = 0;
  // Of the last run, if it is no pair: a position reserved for R, and whether R and the backward have been put.
  std::size_t again_ = 0;
  bool again_in_run_ = false, backward_in_run_ = false;
  std::size_t in_front_ = 0;         // empty position in front of the last pair
  std::optional<int> second_stage_;  // stage of the last pair's backward
};

std::vector<Action> merged_per_stage(const std::vector<Action>& actions) {
  const Overlaps overlaps = find_overlaps(actions);
  const std::vector<Run> runs = runs_of(actions, overlaps);
  Merger merger;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (is_compute(action.op)) {
      merger.compute(action, runs[i], overlaps);
    } else if (is_row_exchange(action.op) || takes_kept(action.op)) {
      continue;  // inside the stage's action
    } else if (!action.unit) {
      merger.put(action);
    } else if (is_gather(action.op)) {
      merger.unshard(action, runs[i]);
    } else if (is_reshard(action.op)) {
      merger.reshard(action, runs[i]);
    } else if (action.op == Op::tie_gradient) {
      merger.put(action);
    } else {
      merger.reduce(action, runs[i]);
    }
  }
  return merger.result();
}

}  // namespace

std::vector<Action> at_detail(const std::vector<Action>& actions, Detail detail) {
  if (detail == Detail::everything) return actions;
  std::vector<Action> merged = merged_per_stage(actions);
  if (detail == Detail::compute_only) {
    std::erase_if(merged, [](const Action& action) { return !is_compute(action.op) || action.op == Op::recompute; });
  }
  return merged;
}

}  // namespace weft
