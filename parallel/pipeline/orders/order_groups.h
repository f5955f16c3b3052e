// Groups of microbatches: an order with several stages per rank runs a whole group through one chunk before the next
// chunk.
#pragma once

#include <string_view>
#include <vector>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

// One forward or backward of a rank: the chunk it runs and the microbatch.
struct ChunkTurn {
  int chunk = 0, microbatch = 0;
};

// Microbatches per group: `input.microbatch_group`. If that is 0, as in PyTorch, max(1, microbatches / ranks) equal
// groups. A group shorter than the ranks would finish its chunk before its first microbatch returns to rank 0. So no
// group, the last one included, may be shorter, except a single group of all microbatches. Throws Error (request)
// naming the nearest counts, and the group, that work.
int microbatch_group(std::string_view schedule, const OrderInput& input);

// The turns of every rank, equal on all ranks: group by group, chunk by chunk, microbatches ascending. Backwards take
// the same turns with the chunks mirrored.
std::vector<ChunkTurn> turns_by_group(const OrderInput& input, int group);

}  // namespace weft
