// Qi et al. 2024, "Pipeline parallelism with controllable memory". An order is one microbatch's pattern of forwards and
// backwards over the ranks of a V, repeated every six units of time. The distance between the four slots of a rank is
// the lifetime of its activations, so the slots determine the memory.
#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "parallel/pipeline/orders/order_input.h"
#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// The times at which a rank runs microbatch 0, if F, I and W of a chunk take one unit each. Microbatch m follows 6 m
// units later; weight gradients use free slots. The four slots differ modulo 6.
struct BlockSlots {
  int forward_up = 0, forward_down = 0;    // chunk 0, on its way up the ranks, and chunk 1, on its way down
  int backward_down = 0, backward_up = 0;  // input gradient of chunk 1 and of chunk 0
};

constexpr int period = 6;  // F, I and W of two chunks

// Puts a weight gradient into every slot that the block leaves free, oldest first, and the remaining ones at the end.
std::vector<Action> repeated(const OrderInput& input, int rank, const BlockSlots& slots) {
  const int up = stage_of(Placement::v, input.ranks, rank, 0), down = stage_of(Placement::v, input.ranks, rank, 1);
  std::vector<std::optional<Action>> line(slots.backward_up + period * input.microbatches);
  for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
    const auto put = [&](Op op, int stage, int slot) {
      auto& place = line[slot + period * microbatch];
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

// Runs all ranks in unit time. If a rank's next action waits for data, the rank takes a later action of its list
// instead. It does not if the activations then exceed `peak_` in the rest of the list. The remaining list keeps its
// order, so the old order can always continue, and there is no deadlock.
//
// A stage takes its microbatches in order. So of each kind of action only the first that is left can be ready. Later
// ones have at least as many activations before them.
class Squeeze {
 public:
  Squeeze(const OrderInput& input, RankLists lists)
      : input_(input),
        peak_(0),
        lists_(std::move(lists)),
        kinds_(lists_.size()),
        heads_(lists_.size(), 0),
        kept_(lists_.size(), 0) {
    const auto entries = static_cast<std::size_t>(2 * input.ranks * input.microbatches);
    forward_end_.resize(entries);
    backward_end_.resize(entries);
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      const auto& list = lists_[rank];
      peak_ = std::max(peak_, chunks_in_flight(list));
      taken_.emplace_back(list.size(), false);
      for (std::size_t i = 0; i < list.size(); ++i) kinds_[rank][kind_of(list[i])].push_back(i);
    }
  }

  RankLists run() {
    RankLists result(lists_.size());
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
  std::size_t kind_of(const Action& action) const {
    const std::size_t op = action.op == Op::forward ? 0 : action.op == Op::backward_input ? 1 : 2;
    return 2 * op + (*action.stage >= input_.ranks ? 1 : 0);
  }
  std::size_t entry(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage * input_.microbatches + microbatch);
  }
  bool over(const std::optional<int>& end) const { return end && *end <= now_; }

  bool ready(const Action& action) const {
    const int microbatch = *action.microbatch;
    if (action.op == Op::backward_weight) return over(backward_end_[entry(*action.stage, microbatch)]);
    const auto needed = read_by(action, 2 * input_.ranks);
    return !needed || over((needed->forward ? forward_end_ : backward_end_)[entry(needed->stage, microbatch)]);
  }

  // In the cool-down, after the last microbatch has arrived, weight gradients wait for a gap: no rank waits for them.
  std::optional<std::size_t> choose(std::size_t rank) const {
    const auto& list = lists_[rank];
    const bool way_out = over(forward_end_[entry(static_cast<int>(rank), input_.microbatches - 1)]);
    std::optional<std::size_t> choice;
    for (const auto& left : kinds_[rank]) {
      if (left.empty() || !ready(list[left.front()])) continue;
      const std::size_t index = left.front();
      if (list[index].op == Op::forward && most_kept_before(rank, index) >= peak_) continue;
      const auto comes_later = [&](std::size_t i) {
        return std::pair(way_out && list[i].op == Op::backward_weight, i);
      };
      if (!choice || comes_later(index) < comes_later(*choice)) choice = index;
    }
    return choice;
  }

  // A forward that overtakes earlier actions adds its activations to those of each of them.
  int most_kept_before(std::size_t rank, std::size_t index) const {
    int kept = kept_[rank], most = kept;
    for (std::size_t i = heads_[rank]; i < index; ++i) {
      if (!taken_[rank][i]) kept += change_of(lists_[rank][i].op);
      most = std::max(most, kept);
    }
    return most;
  }

  const Action& take(std::size_t rank, std::size_t index) {
    const Action& action = lists_[rank][index];
    taken_[rank][index] = true;
    kinds_[rank][kind_of(action)].pop_front();
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
  RankLists lists_;
  std::vector<std::vector<bool>> taken_;
  std::vector<std::array<std::deque<std::size_t>, 6>> kinds_;   // places of the actions left, by op and chunk
  std::vector<std::size_t> heads_;                              // first action of each list that is not taken
  std::vector<int> kept_;                                       // activations, by rank
  std::vector<std::optional<int>> forward_end_, backward_end_;  // by stage, then microbatch
  int now_ = 0;
};

// The repeated block. Gaps at its beginning and end are closed as far as the block's own peak of activations allows.
// `slots(ranks, rank)` is the block.
RankLists repeated_block_order(const OrderInput& input, BlockSlots (*slots)(int ranks, int rank)) {
  return Squeeze(input, on_each_rank(input, [&](int rank) { return repeated(input, rank, slots(input.ranks, rank)); }))
      .run();
}

// Chunk 0 climbs the ranks in steps of two and returns in steps of one, forward and backward alike. An even number of
// ranks needs three more units between forward and backward; otherwise slots would collide.
BlockSlots half_slots(int ranks, int rank) {
  const int apart = ranks % 2 == 0 ? 3 : 0;
  return {.forward_up = 2 * rank,
          .forward_down = 3 * ranks - 2 - rank,
          .backward_down = 3 * ranks - 1 + apart + 2 * rank,
          .backward_up = 6 * ranks - 2 + apart - rank};
}

// One unit per rank all the way, there and back twice. A number of ranks divisible by three needs two more units
// between forward and backward; otherwise slots would collide.
BlockSlots min_slots(int ranks, int rank) {
  const int apart = ranks % 3 == 0 ? 2 : 0;
  return {.forward_up = rank,
          .forward_down = 2 * ranks - 1 - rank,
          .backward_down = 2 * ranks + apart + rank,
          .backward_up = 4 * ranks - 1 + apart - rank};
}

}  // namespace

// V-Half: about half the activations of 1F1B, (ranks + 2) / 2 microbatches rounded down, equal on every rank.
RankLists v_half_order(const OrderInput& input) {
  return repeated_block_order(input, half_slots);
}

// V-Min: the fewest activations, (ranks + 4) / 3 microbatches rounded down, a third of those of 1F1B. The bubble is
// close to that of interleaved 1F1B.
RankLists v_min_order(const OrderInput& input) {
  return repeated_block_order(input, min_slots);
}

}  // namespace weft
