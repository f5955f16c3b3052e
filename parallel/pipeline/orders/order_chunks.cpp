// Orders with several stages per rank. A group of microbatches runs through one chunk before the next chunk.
#include <algorithm>
#include <string_view>
#include <vector>

#include "parallel/pipeline/orders/order_input.h"
#include "parallel/pipeline/orders/orders.h"
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

// Microbatches per group: `input.microbatch_group`. If that is 0, as in PyTorch, max(1, microbatches / ranks) equal
// groups. A group shorter than the ranks would finish its chunk before its first microbatch returns to rank 0. So no
// group, the last one included, may be shorter, except a single group of all microbatches. Throws Error (request)
// naming the nearest counts, and the group, that work.
int microbatch_group(std::string_view schedule, const OrderInput& input) {
  if (input.microbatch_group == 0) return group_of_equal_rounds(schedule, input.ranks, input.microbatches);
  const int group = input.microbatch_group;
  if (group < input.ranks) {
    fail_request("schedule {} on {} ranks takes groups of at least {} microbatches, not {}; set microbatch_group = {}",
                 schedule, input.ranks, input.ranks, group, input.ranks);
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

}  // namespace

// Narayanan et al. 2021, as Megatron runs it: 1F1B over chunks. A rank runs ahead by two turns for each rank behind it,
// for the way there and back, and by one group for each chunk except one. The bubble is that of 1F1B divided by the
// chunks.
std::vector<std::vector<Action>> interleaved_order(const OrderInput& input) {
  require_counts("interleaved", input);
  const int group = microbatch_group("interleaved", input);
  const std::vector<ChunkTurn> turns = turns_by_group(input, group);
  std::vector<std::vector<Action>> ranks(static_cast<std::size_t>(input.ranks));
  for (int rank = 0; rank < input.ranks; ++rank) {
    auto& actions = ranks[static_cast<std::size_t>(rank)];
    const auto ahead = static_cast<std::size_t>(2 * (input.ranks - 1 - rank) + (input.chunks - 1) * group);
    const auto add = [&](Op op, const ChunkTurn& turn) {
      const int chunk = op == Op::forward ? turn.chunk : input.chunks - 1 - turn.chunk;
      actions.push_back(stage_action(op, stage_of(Placement::looped, input.ranks, rank, chunk), turn.microbatch));
    };
    const std::size_t warm_up = std::min(ahead, turns.size());
    for (std::size_t turn = 0; turn < warm_up; ++turn) add(Op::forward, turns[turn]);
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      if (warm_up + turn < turns.size()) add(Op::forward, turns[warm_up + turn]);
      add(Op::backward, turns[turn]);
    }
  }
  return ranks;
}

// Lamy-Poirier 2023, in PyTorch's form: breadth first. All microbatches run through one chunk before the next;
// backwards run in reverse, last microbatch first. Each stage is visited once forward and once backward, so that full
// parameters are gathered rarely. The activations of every microbatch are alive between the two.
std::vector<std::vector<Action>> looped_bfs_order(const OrderInput& input) {
  require_counts("looped_bfs", input);
  std::vector<std::vector<Action>> ranks(static_cast<std::size_t>(input.ranks));
  for (int rank = 0; rank < input.ranks; ++rank) {
    auto& actions = ranks[static_cast<std::size_t>(rank)];
    for (int chunk = 0; chunk < input.chunks; ++chunk) {
      const int stage = stage_of(Placement::looped, input.ranks, rank, chunk);
      for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
        actions.push_back(stage_action(Op::forward, stage, microbatch));
      }
    }
    for (std::size_t turn = actions.size(); turn-- > 0;) {
      actions.push_back(stage_action(Op::backward, *actions[turn].stage, *actions[turn].microbatch));
    }
  }
  return ranks;
}

// PyTorch's interleaved zero bubble: the interleaved order with a split backward. A rank runs ahead by one turn for
// each rank behind it, not two, because only the input gradient travels back. Each weight gradient follows as many
// input gradients later as there are ranks before this one. With one chunk the order is ZB-H1.
std::vector<std::vector<Action>> zb1p_order(const OrderInput& input) {
  require_counts("zb1p", input);
  // With one chunk a microbatch does not return to rank 0, so any number of microbatches will do.
  const int group =
      input.chunks == 1 && input.microbatch_group == 0 ? input.microbatches : microbatch_group("zb1p", input);
  const std::vector<ChunkTurn> turns = turns_by_group(input, group);
  std::vector<std::vector<Action>> ranks(static_cast<std::size_t>(input.ranks));
  for (int rank = 0; rank < input.ranks; ++rank) {
    auto& actions = ranks[static_cast<std::size_t>(rank)];
    const auto ahead = static_cast<std::size_t>(input.ranks - 1 - rank + (input.chunks - 1) * group);
    const auto behind = static_cast<std::size_t>(rank);
    const auto add = [&](Op op, const ChunkTurn& turn) {
      const int chunk = op == Op::forward ? turn.chunk : input.chunks - 1 - turn.chunk;
      actions.push_back(stage_action(op, stage_of(Placement::looped, input.ranks, rank, chunk), turn.microbatch));
    };
    const std::size_t warm_up = std::min(ahead, turns.size());
    for (std::size_t turn = 0; turn < warm_up; ++turn) add(Op::forward, turns[turn]);
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      if (warm_up + turn < turns.size()) add(Op::forward, turns[warm_up + turn]);
      add(Op::backward_input, turns[turn]);
      if (turn >= behind) add(Op::backward_weight, turns[turn - behind]);
    }
    const std::size_t left = std::min(behind, turns.size());
    for (std::size_t turn = turns.size() - left; turn < turns.size(); ++turn) add(Op::backward_weight, turns[turn]);
  }
  return ranks;
}

}  // namespace weft
