// Qi et al. 2024, "Pipeline parallelism with controllable memory": an order is one microbatch's pattern of forwards and
// backwards over the ranks of a V, repeated every six units of time. The distance between the four slots of a rank is
// the lifetime of its activations, so the slots determine the memory.
#pragma once

#include <vector>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

// The times at which a rank runs microbatch 0, if F, I and W of a chunk take one unit each. Microbatch m follows 6 m
// units later; weight gradients use free slots. The four slots differ modulo 6.
struct BlockSlots {
  int forward_up = 0, forward_down = 0;    // chunk 0, on its way up the ranks, and chunk 1, on its way down
  int backward_down = 0, backward_up = 0;  // input gradient of chunk 1 and of chunk 0
};

// The repeated block. Gaps at its beginning and end are closed as far as the block's own peak of activations allows.
// `slots(ranks, rank)` is the block.
std::vector<std::vector<Action>> repeated_block_order(const OrderInput& input,
                                                      BlockSlots (*slots)(int ranks, int rank));

}  // namespace weft
