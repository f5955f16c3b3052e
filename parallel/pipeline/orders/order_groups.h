// Orders that run several stages a rank take a group of microbatches through one chunk before they turn to the next.
#pragma once

#include <string_view>
#include <vector>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

// One forward or backward of a rank: the chunk it runs and the microbatch.
struct ChunkTurn {
  int chunk = 0, microbatch = 0;
};

// Microbatches of a group: `input.microbatch_group`, or as PyTorch has it the microbatches in max(1, microbatches /
// ranks) equal rounds. A group shorter than the ranks is through its chunk before the first of it has come round to
// rank 0 again, so no group may be, not even the last one, unless there are no more microbatches. Throws Error
// (request) naming the nearest counts, and the group, that work.
int microbatch_group(std::string_view schedule, const OrderInput& input);

// The turns of every rank alike: group by group, chunk by chunk, microbatches ascending. Backwards take the same turns
// with the chunks mirrored.
std::vector<ChunkTurn> turns_by_group(const OrderInput& input, int group);

}  // namespace weft
