#include <algorithm>

#include "parallel/pipeline/orders/order_input.h"

namespace weft {

// Huang et al. 2019: all forwards, then all backwards. The simplest order, with the most memory: the activations of
// every microbatch are alive between the two.
std::vector<std::vector<Action>> gpipe_order(const OrderInput& input) {
  require_counts("gpipe", input);
  std::vector<std::vector<Action>> ranks(static_cast<std::size_t>(input.ranks));
  for (int rank = 0; rank < input.ranks; ++rank) {
    auto& actions = ranks[static_cast<std::size_t>(rank)];
    for (Op op : {Op::forward, Op::backward}) {
      for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
        actions.push_back(stage_action(op, rank, microbatch));
      }
    }
  }
  return ranks;
}

// Narayanan et al. 2021: a rank runs as many forwards ahead as there are ranks behind it, then one forward and one
// backward in turn, then the remaining backwards. The rank keeps min(ranks - rank, microbatches) activations. The
// bubble is that of GPipe.
std::vector<std::vector<Action>> one_f_one_b_order(const OrderInput& input) {
  require_counts("1f1b", input);
  std::vector<std::vector<Action>> ranks(static_cast<std::size_t>(input.ranks));
  for (int rank = 0; rank < input.ranks; ++rank) {
    auto& actions = ranks[static_cast<std::size_t>(rank)];
    const int warm_up = std::min(input.ranks - 1 - rank, input.microbatches);
    for (int microbatch = 0; microbatch < warm_up; ++microbatch) {
      actions.push_back(stage_action(Op::forward, rank, microbatch));
    }
    for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
      if (warm_up + microbatch < input.microbatches) {
        actions.push_back(stage_action(Op::forward, rank, warm_up + microbatch));
      }
      actions.push_back(stage_action(Op::backward, rank, microbatch));
    }
  }
  return ranks;
}

// Qi et al. 2024, the hand-made ZB-H1: 1F1B with a split backward. The input gradient takes the place of the backward,
// because the rank before waits for it. The weight gradient follows as many backwards later as there are ranks before
// this one, in the former bubble. Every rank keeps min(ranks, microbatches) activations, as rank 0 of 1F1B does.
std::vector<std::vector<Action>> zb_h1_order(const OrderInput& input) {
  require_counts("zb_h1", input);
  std::vector<std::vector<Action>> ranks(static_cast<std::size_t>(input.ranks));
  for (int rank = 0; rank < input.ranks; ++rank) {
    auto& actions = ranks[static_cast<std::size_t>(rank)];
    const int warm_up = std::min(input.ranks - 1 - rank, input.microbatches);
    for (int microbatch = 0; microbatch < warm_up; ++microbatch) {
      actions.push_back(stage_action(Op::forward, rank, microbatch));
    }
    for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
      if (warm_up + microbatch < input.microbatches) {
        actions.push_back(stage_action(Op::forward, rank, warm_up + microbatch));
      }
      actions.push_back(stage_action(Op::backward_input, rank, microbatch));
      if (microbatch >= rank) actions.push_back(stage_action(Op::backward_weight, rank, microbatch - rank));
    }
    for (int microbatch = std::max(input.microbatches - rank, 0); microbatch < input.microbatches; ++microbatch) {
      actions.push_back(stage_action(Op::backward_weight, rank, microbatch));
    }
  }
  return ranks;
}

}  // namespace weft
