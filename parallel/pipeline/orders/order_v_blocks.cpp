#include "parallel/pipeline/orders/order_v_blocks.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "parallel/pipeline/orders/order_input.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr int period = 6;  // F, I and W of two chunks

// Puts a weight gradient into every slot that the block leaves free, oldest first, and the remaining ones at the end.
std::vector<Action> repeated(const OrderInput& input, int rank, const BlockSlots& slots) {
  const int up = stage_of(Placement::v, input.ranks, rank, 0), down = stage_of(Placement::v, input.ranks, rank, 1);
  std::vector<std::optional<Action>> line(static_cast<std::size_t>(slots.backward_up + period * input.microbatches));
  for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
    const auto put = [&](Op op, int stage, int slot) {
      auto& place = line[static_cast<std::size_t>(slot + period * microbatch)];
      require(!place, "the slots of a block fall together");
      place = stage_action(op, stage, microbatch);
    };
    put(Op::forward, up, slots.forward_up);
    put(Op::forward, down, slots.forward_down);
    put(Op::backward_input, down, slots.backward_down);
    put(Op::backward_input, up, slots.backward_up);
  }
  std::vector<Action> actions;
  std::deque<Action> weights;
  const auto take_weight = [&] {
    actions.push_back(weights.front());
    weights.pop_front();
  };
  for (const auto& slot : line) {
    if (slot) {
      actions.push_back(*slot);
      if (slot->op == Op::backward_input) {
        weights.push_back(stage_action(Op::backward_weight, *slot->stage, *slot->microbatch));
      }
    } else if (!weights.empty()) {
      take_weight();
    }
  }
  while (!weights.empty()) take_weight();
  return actions;
}

int change_of(Op op) {
  return op == Op::forward ? 1 : op == Op::backward_weight ? -1 : 0;
}

// The most chunks that a list keeps at once between their forward and weight gradient.
int peak_of(const std::vector<Action>& actions) {
  int kept = 0, peak = 0;
  for (const Action& action : actions) {
    kept += change_of(action.op);
    peak = std::max(peak, kept);
  }
  return peak;
}

// Runs all ranks in unit time. If a rank's next action waits for data, the rank takes a later action of its list
// instead, unless the activations then exceed `peak_` in the rest of the list. The remaining list keeps its order, so
// the old order can always continue, and there is no deadlock.
class Squeeze {
 public:
  Squeeze(const OrderInput& input, std::vector<std::vector<Action>> lists)
      : input_(input), peak_(0), lists_(std::move(lists)), heads_(lists_.size(), 0), kept_(lists_.size(), 0) {
    const auto entries = static_cast<std::size_t>(2 * input.ranks * input.microbatches);
    forward_end_.resize(entries);
    backward_end_.resize(entries);
    for (const auto& list : lists_) {
      peak_ = std::max(peak_, peak_of(list));
      taken_.emplace_back(list.size(), false);
    }
  }

  std::vector<std::vector<Action>> run() {
    std::vector<std::vector<Action>> result(lists_.size());
    for (std::size_t left = lists_.size(); left > 0; ++now_) {
      for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
        if (heads_[rank] == lists_[rank].size()) continue;
        if (const auto choice = choose(rank)) result[rank].push_back(take(rank, *choice));
        if (heads_[rank] == lists_[rank].size()) --left;
      }
    }
    return result;
  }

 private:
  std::size_t entry(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage * input_.microbatches + microbatch);
  }
  bool over(const std::optional<int>& end) const { return end && *end <= now_; }

  bool ready(const Action& action) const {
    const int stage = *action.stage, microbatch = *action.microbatch, last = 2 * input_.ranks - 1;
    if (action.op == Op::forward) return stage == 0 || over(forward_end_[entry(stage - 1, microbatch)]);
    if (action.op == Op::backward_weight) return over(backward_end_[entry(stage, microbatch)]);
    return stage == last ? over(forward_end_[entry(stage, microbatch)])
                         : over(backward_end_[entry(stage + 1, microbatch)]);
  }

  // In the cool-down, after the last microbatch has arrived, weight gradients wait for a gap: no rank waits for them.
  std::optional<std::size_t> choose(std::size_t rank) const {
    const auto& list = lists_[rank];
    const bool way_out = over(forward_end_[entry(static_cast<int>(rank), input_.microbatches - 1)]);
    std::optional<std::size_t> weight;
    int kept = kept_[rank], peak_before = kept;
    for (std::size_t i = heads_[rank]; i < list.size(); ++i) {
      if (taken_[rank][i]) continue;
      const Op op = list[i].op;
      // A forward that overtakes earlier actions adds its activations to those of each of them.
      if (ready(list[i]) && (op != Op::forward || peak_before < peak_)) {
        if (!way_out || op != Op::backward_weight) return i;
        if (!weight) weight = i;
      }
      kept += change_of(op);
      peak_before = std::max(peak_before, kept);
    }
    return weight;
  }

  const Action& take(std::size_t rank, std::size_t index) {
    const Action& action = lists_[rank][index];
    taken_[rank][index] = true;
    while (heads_[rank] < taken_[rank].size() && taken_[rank][heads_[rank]]) ++heads_[rank];
    kept_[rank] += change_of(action.op);
    if (action.op != Op::backward_weight) {
      auto& ends = action.op == Op::forward ? forward_end_ : backward_end_;
      ends[entry(*action.stage, *action.microbatch)] = now_ + 1;
    }
    return action;
  }

  const OrderInput& input_;
  int peak_;  // of all ranks
  std::vector<std::vector<Action>> lists_;
  std::vector<std::vector<bool>> taken_;
  std::vector<std::size_t> heads_;                              // first action of each list that is not taken
  std::vector<int> kept_;                                       // activations, by rank
  std::vector<std::optional<int>> forward_end_, backward_end_;  // by stage, then microbatch
  int now_ = 0;
};

}  // namespace

std::vector<std::vector<Action>> repeated_block_order(const OrderInput& input,
                                                      BlockSlots (*slots)(int ranks, int rank)) {
  std::vector<std::vector<Action>> lists;
  for (int rank = 0; rank < input.ranks; ++rank) lists.push_back(repeated(input, rank, slots(input.ranks, rank)));
  return Squeeze(input, std::move(lists)).run();
}

}  // namespace weft
