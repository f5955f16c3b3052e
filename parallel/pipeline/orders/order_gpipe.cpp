// All forwards, then all backwards.
#include "parallel/pipeline/orders/order_input.h"

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

}  // namespace weft
