#include "parallel/pipeline/orders/order_input.h"
#include "parallel/pipeline/orders/order_v_blocks.h"

namespace weft {
namespace {

// Chunk 0 climbs the ranks in steps of two and returns in steps of one, forward and backward alike. An even number of
// ranks needs three more units between forward and backward; otherwise slots would collide.
BlockSlots half_slots(int ranks, int rank) {
  const int apart = ranks % 2 == 0 ? 3 : 0;
  return {.forward_up = 2 * rank,
          .forward_down = 3 * ranks - 2 - rank,
          .backward_down = 3 * ranks - 1 + apart + 2 * rank,
          .backward_up = 6 * ranks - 2 + apart - rank};
}

}  // namespace

// V-Half: about half the activations of 1F1B, (ranks + 2) / 2 microbatches rounded down, equal on every rank.
std::vector<std::vector<Action>> v_half_order(const OrderInput& input) {
  require_counts("v_half", input);
  return repeated_block_order(input, half_slots);
}

}  // namespace weft
