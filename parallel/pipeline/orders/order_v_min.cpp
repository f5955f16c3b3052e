#include "parallel/pipeline/orders/order_input.h"
#include "parallel/pipeline/orders/order_v_blocks.h"

namespace weft {
namespace {

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

// V-Min: the fewest activations, (ranks + 4) / 3 microbatches rounded down, a third of those of 1F1B. The bubble is
// close to that of interleaved 1F1B.
std::vector<std::vector<Action>> v_min_order(const OrderInput& input) {
  require_counts("v_min", input);
  return repeated_block_order(input, min_slots);
}

}  // namespace weft
