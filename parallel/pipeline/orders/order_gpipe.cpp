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

}  // namespace weft
