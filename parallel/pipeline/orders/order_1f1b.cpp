// One forward, one backward in turn, with any number of stages per rank. A group of microbatches runs through one chunk
// before the next chunk.
#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "parallel/pipeline/orders/order_input.h"
#include "parallel/pipeline/program/overlap.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// One forward or backward of a rank: the chunk it runs and the microbatch.
struct ChunkTurn {
  int chunk = 0, microbatch = 0;
};

bool fits(int ranks, int group, int microbatches) {
  return microbatches >= group && (microbatches % group == 0 || microbatches % group >= ranks);
}

// The largest number of groups with at least as many microbatches as ranks.
int rounds_of(int ranks, int microbatches) {
  return std::max(1, microbatches / ranks);
}

int group_of_equal_rounds(std::string_view schedule, int ranks, int microbatches) {
  const int rounds = rounds_of(ranks, microbatches);
  int unequal = microbatches / rounds;
  while (unequal < microbatches && !fits(ranks, unequal, microbatches)) ++unequal;
  require_microbatches(
      fmt::format("schedule {} on {} ranks takes microbatches in equal groups, and {} make no {} of them; set "
                  "microbatch_group = {} for a shorter last one",
                  schedule, ranks, microbatches, rounds, unequal),
      microbatches, [&](int count) { return count > 0 && count % rounds_of(ranks, count) == 0; });
  return microbatches / rounds;
}

}  // namespace

int microbatch_group(std::string_view schedule, const OrderInput& input) {
  if (input.chunks == 1 && input.microbatch_group == 0) return input.microbatches;
  if (input.microbatch_group == 0) return group_of_equal_rounds(schedule, input.ranks, input.microbatches);
  const int group = input.microbatch_group;
  if (group == input.microbatches) return group;
  if (group < input.ranks) {
    int works = std::min(input.ranks, input.microbatches);
    while (works < input.microbatches && !fits(input.ranks, works, input.microbatches)) ++works;
    fail_request(
        "schedule {} on {} ranks takes groups of at least {} microbatches or of all, not {}; set microbatch_group = {}",
        schedule, input.ranks, input.ranks, group, works);
  }
  if (group > input.microbatches && input.microbatches >= input.ranks) {
    fail_request(
        "schedule {}: microbatch_group = {} is more than the {} microbatches of a step; set microbatch_group "
        "= {}, or microbatches = {}",
        schedule, group, input.microbatches, input.microbatches, group);
  }
  require_microbatches(
      fmt::format("schedule {} on {} ranks in groups of {} microbatches leaves a group of {}, shorter than the ranks",
                  schedule, input.ranks, group, input.microbatches % group),
      input.microbatches, [&](int microbatches) { return fits(input.ranks, group, microbatches); });
  return group;
}

namespace {

// The turns of every rank, equal on all ranks: group by group, chunk by chunk, microbatches ascending. Backwards take
// the same turns with the chunks mirrored.
std::vector<ChunkTurn> turns_by_group(const OrderInput& input, int group) {
  std::vector<ChunkTurn> turns;
  for (int first = 0; first < input.microbatches; first += group) {
    const int end = std::min(first + group, input.microbatches);
    for (int chunk = 0; chunk < input.chunks; ++chunk) {
      for (int microbatch = first; microbatch < end; ++microbatch) turns.push_back({chunk, microbatch});
    }
  }
  return turns;
}

// Runs `ahead` forwards ahead, then one forward and one backward in turn, then the remaining backwards. With
// `weights_behind` the backward is split: each weight gradient follows so many turns after its input gradient.
std::vector<Action> one_and_one(const OrderInput& input, int rank, const std::vector<ChunkTurn>& turns, int ahead,
                                std::optional<int> weights_behind = std::nullopt) {
  std::vector<Action> actions;
  const auto add = [&](Op op, std::size_t turn) {
    const int chunk = op == Op::forward ? turns[turn].chunk : input.chunks - 1 - turns[turn].chunk;
    actions.push_back(stage_action(op, stage_of(Placement::looped, input.ranks, rank, chunk), turns[turn].microbatch));
  };
  const std::size_t warm_up = std::min(static_cast<std::size_t>(ahead), turns.size());
  const std::size_t behind = std::min(static_cast<std::size_t>(weights_behind.value_or(0)), turns.size());
  for (std::size_t turn = 0; turn < warm_up; ++turn) add(Op::forward, turn);
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    if (warm_up + turn < turns.size()) add(Op::forward, warm_up + turn);
    add(weights_behind ? Op::backward_input : Op::backward, turn);
    if (weights_behind && turn >= behind) add(Op::backward_weight, turn - behind);
  }
  for (std::size_t turn = turns.size() - behind; turn < turns.size(); ++turn) add(Op::backward_weight, turn);
  return actions;
}

}  // namespace

// Narayanan et al. 2021: a rank runs as many forwards ahead as there are ranks behind it. The rank keeps min(ranks -
// rank, microbatches) activations. The bubble is that of GPipe.
RankLists one_f_one_b_order(const OrderInput& input) {
  const std::vector<ChunkTurn> turns = turns_by_group(input, input.microbatches);
  return on_each_rank(input, [&](int rank) { return one_and_one(input, rank, turns, input.ranks - 1 - rank); });
}

// Narayanan et al. 2021, as Megatron runs it: 1F1B over chunks. A rank runs ahead by two turns for each rank behind it,
// for the way there and back. It also runs ahead by one group for each chunk except one. The bubble is that of 1F1B
// divided by the chunks.
RankLists interleaved_order(const OrderInput& input) {
  const int group = microbatch_group("interleaved", input);
  const std::vector<ChunkTurn> turns = turns_by_group(input, group);
  return on_each_rank(input, [&](int rank) {
    return one_and_one(input, rank, turns, 2 * (input.ranks - 1 - rank) + (input.chunks - 1) * group);
  });
}

// PyTorch's interleaved zero bubble: the interleaved order with a split backward. A rank runs ahead by one turn for
// each rank behind it, not two, because only the input gradient travels back. Each weight gradient follows as many
// input gradients later as there are ranks before this one, in the former bubble. With one chunk the order is the
// hand-made ZB-H1 of Qi et al. 2024. Every rank then keeps min(ranks, microbatches) activations, as rank 0 of 1F1B
// does.
RankLists zb1p_order(const OrderInput& input) {
  const int group = microbatch_group("zb1p", input);
  const std::vector<ChunkTurn> turns = turns_by_group(input, group);
  return on_each_rank(input, [&](int rank) {
    return one_and_one(input, rank, turns, input.ranks - 1 - rank + (input.chunks - 1) * group, rank);
  });
}

// As Megatron runs it to overlap the exchanges of experts: the interleaved order, in which a rank runs one more forward
// ahead. The forward and the backward of a turn then belong to different microbatches, and are an overlapped pair. A
// rank thus keeps one chunk's activations more. With one chunk it runs ahead by two forwards for each rank behind it,
// not by one as in 1F1B. The reason is that a pair hands on its results at its end.
RankLists combined_1f1b_order(const OrderInput& input) {
  const int group = microbatch_group("combined_1f1b", input);
  const std::vector<ChunkTurn> turns = turns_by_group(input, group);
  return on_each_rank(input, [&](int rank) {
    const int ahead = 2 * (input.ranks - 1 - rank) + (input.chunks - 1) * group + 1;
    std::vector<Action> actions = one_and_one(input, rank, turns, ahead);
    for (std::size_t i = std::min(static_cast<std::size_t>(ahead), turns.size()); i + 1 < actions.size(); i += 2) {
      if (!may_overlap(actions[i], actions[i + 1])) break;
      actions[i].overlapped = actions[i + 1].overlapped = true;
    }
    return actions;
  });
}

}  // namespace weft
