#include <algorithm>

#include "parallel/pipeline/orders/order_groups.h"
#include "parallel/pipeline/orders/order_input.h"

namespace weft {

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

}  // namespace weft
