#include <algorithm>

#include "parallel/pipeline/orders/order_input.h"

namespace weft {

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

}  // namespace weft
