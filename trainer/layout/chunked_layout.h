// Assigns blocks to stages if a rank runs several. Minimized in this order: the cost of the most loaded rank (within a
// hundredth), the cost of the most expensive stage, the cost of the most loaded rank at that cost of stages, and the
// bytes of the fullest rank (to a thousandth).
//
// Cuts between stages are chosen rank by rank (chunked_layout_search.h). In a V placement, a rank's stages lie around
// those of the ranks before, so few cuts determine the rest. The stages of a looped rank lie apart, and more cuts must
// be remembered. The work is bounded: it starts from the best split by stages, improved by moving single blocks. A
// search that uses up its work counts as one without a result. So the result is the best for small models, and the best
// found for large ones.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/layout/layout_loads.h"

namespace weft {

// `starts`: splits, each as the first block of each stage and the number of blocks. The first has a block on every
// stage, the second the head alone on the last. Returns a split of the first form, unless the second has a cheaper rank
// or stage. Ranks need at most `limit` bytes or, if no such split was found, the least bytes that were found.
std::vector<int> deal_to_ranks(const LayoutLoads& loads, std::int64_t limit,
                               const std::vector<std::vector<int>>& starts);

}  // namespace weft
