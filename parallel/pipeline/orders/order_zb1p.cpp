#include <algorithm>

#include "parallel/pipeline/orders/order_groups.h"
#include "parallel/pipeline/orders/order_input.h"

namespace weft {

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
