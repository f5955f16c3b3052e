#include "parallel/pipeline/program/overlap.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

// Whether `action` is a further segment of `half`. A half without segments is a single action.
bool continues(const std::optional<Action>& half, const Action& action) {
  return half && half->segment && action.segment && half->op == action.op && half->stage == action.stage &&
         half->microbatch == action.microbatch;
}

class PairWalk {
 public:
  explicit PairWalk(const std::vector<Action>& actions) : actions_(actions) { result_.pair_of.resize(actions.size()); }

  Overlaps run() {
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      if (!is_compute(action.op)) {
        if (action.overlapped) result_.broken.push_back(i);
        continue;
      }
      if (action.overlapped && joins(action)) {
        if (continues(unmarked_, action)) result_.broken.push_back(i);
        members_.push_back(i);
        continue;
      }
      const bool half_marked = action.overlapped ? continues(unmarked_, action) : is_more_of_pair(action);
      if (half_marked) result_.broken.push_back(i);
      close();
      unmarked_ = action.overlapped ? unmarked_ : std::optional(action);
      if (!action.overlapped || half_marked) continue;
      if (may_open(action)) {
        half_of(action) = action;
        members_ = {i};
      } else {
        result_.broken.push_back(i);
      }
    }
    close();
    std::ranges::sort(result_.broken);
    return std::move(result_);
  }

 private:
  // Stage-level pairs begin with their forward.
  static bool may_open(const Action& action) {
    return action.op == Op::forward ||
           (action.segment && (action.op == Op::recompute || makes_input_gradient(action.op)));
  }
  std::optional<Action>& half_of(const Action& action) {
    return action.op == Op::forward ? forward_ : action.op == Op::recompute ? again_ : backward_;
  }

  // Adds the first action of the other half, or a further one of either.
  bool joins(const Action& action) {
    if (is_more_of_pair(action)) {
      if (action.op == Op::recompute) again_ = action;
      return true;
    }
    const std::optional<Action>& backward = backward_ ? backward_ : again_;
    const bool completes = action.op == Op::forward
                               ? !forward_ && backward && backward->microbatch != action.microbatch
                               : makes_input_gradient(action.op) && !backward_ && (forward_ || again_) &&
                                     (!forward_ || may_overlap(*forward_, action)) &&
                                     (!again_ || same_stage(*again_, action));
    if (completes) half_of(action) = action;
    return completes;
  }
  bool is_more_of_pair(const Action& action) const {
    if (action.op == Op::recompute) return is_for_backward(action);
    return continues(forward_, action) || continues(backward_, action);
  }
  // A recompute (R) stands before the first segment of its backward or between two of its segments.
  bool is_for_backward(const Action& action) const {
    if (!action.segment) return false;
    const std::optional<Action>& known = backward_ ? backward_ : again_;
    return known ? same_stage(*known, action)
                 : forward_ && forward_->segment && forward_->microbatch != action.microbatch;
  }
  static bool same_stage(const Action& one, const Action& other) {
    return one.stage == other.stage && one.microbatch == other.microbatch;
  }

  void close() {
    if (forward_ && backward_) {
      for (std::size_t member : members_) result_.pair_of[member] = result_.pairs.size();
      result_.pairs.push_back({*forward_, *backward_, again_.has_value(), members_.front(), members_.back()});
    } else {
      result_.broken.insert(result_.broken.end(), members_.begin(), members_.end());
    }
    forward_.reset();
    backward_.reset();
    again_.reset();
    members_.clear();
  }

  const std::vector<Action>& actions_;
  Overlaps result_;
  std::optional<Action> forward_, backward_;  // of the pair that is open
  std::optional<Action> again_;               // the latest R of its backward
  std::optional<Action> unmarked_;            // the compute action before the pair that is open, if it is not marked
  std::vector<std::size_t> members_;
};

}  // namespace

bool may_overlap(const Action& forward, const Action& backward) {
  return forward.op == Op::forward && makes_input_gradient(backward.op) && forward.microbatch != backward.microbatch;
}

bool pair_begins_at(const std::vector<Action>& actions, std::size_t position) {
  return position + 1 < actions.size() && actions[position].overlapped && actions[position + 1].overlapped &&
         may_overlap(actions[position], actions[position + 1]);
}

Overlaps find_overlaps(const std::vector<Action>& actions) {
  return PairWalk(actions).run();
}

}  // namespace weft
