// Orders that run all forwards before any backward, or no backward.
#include <optional>

#include "parallel/pipeline/orders/order_input.h"
#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/error.h"

namespace weft {

// Huang et al. 2019: all forwards, then all backwards. The simplest order, with the most memory: the activations of
// every microbatch are alive between the two.
RankLists gpipe_order(const OrderInput& input) {
  return on_each_rank(input, [&](int rank) {
    std::vector<Action> actions;
    for (Op op : {Op::forward, Op::backward}) {
      for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
        actions.push_back(stage_action(op, rank, microbatch));
      }
    }
    return actions;
  });
}

// Lamy-Poirier 2023, in PyTorch's form: breadth first. All microbatches run through one chunk before the next;
// backwards run in reverse, last microbatch first. Each stage is visited once forward and once backward, so that full
// parameters are gathered rarely. The activations of every microbatch are alive between the two.
RankLists looped_bfs_order(const OrderInput& input) {
  return on_each_rank(input, [&](int rank) {
    std::vector<Action> actions;
    for (int chunk = 0; chunk < input.chunks; ++chunk) {
      const int stage = stage_of(Placement::looped, input.ranks, rank, chunk);
      for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
        actions.push_back(stage_action(Op::forward, stage, microbatch));
      }
    }
    for (std::size_t turn = actions.size(); turn-- > 0;) {
      actions.push_back(stage_action(Op::backward, *actions[turn].stage, *actions[turn].microbatch));
    }
    return actions;
  });
}

// A list scheduler: every forward takes one unit of time, messages take none. Without backwards, the deepest stage
// first empties the pipeline soonest, and no rank idles while a microbatch waits for it.
RankLists forward_order(std::span<const int> stage_ranks, int ranks, int microbatches) {
  require(ranks >= 1 && microbatches >= 1 && !stage_ranks.empty(), "a forward has ranks, stages and microbatches");
  const auto stages = static_cast<int>(stage_ranks.size());
  std::vector<int> done(stage_ranks.size(), 0);  // microbatches, by stage; each stage takes them in order
  RankLists order(ranks);
  while (done.back() < microbatches) {
    const std::vector<int> before = done;
    const auto deepest_ready = [&](int rank) -> std::optional<int> {
      for (int stage = stages; stage-- > 0;) {
        const int there = stage == 0 ? microbatches : before[stage - 1];
        if (stage_ranks[stage] == rank && before[stage] < there) return stage;
      }
      return std::nullopt;
    };
    for (int rank = 0; rank < ranks; ++rank) {
      const std::optional<int> stage = deepest_ready(rank);
      if (!stage) continue;
      int& microbatch = done[*stage];
      order[rank].push_back({.op = Op::forward, .stage = *stage, .microbatch = microbatch++});
    }
    require(done != before, "every stage stands on one of the ranks");
  }
  return order;
}

}  // namespace weft
