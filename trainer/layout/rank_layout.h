// Blocks dealt where a rank runs several stages: the most loaded rank as cheap as can be but for a hundredth, then the
// most expensive stage, then the most loaded rank with such stages, then, to a thousandth, the memory of the fullest
// rank.
//
// Cuts between stages are chosen rank by rank (rank_search.h). The ranks of a V lie around those dealt before them, so
// that few cuts tell all that matters for the rest; the stages of a looped rank lie apart, and more must be remembered.
// The work is bounded: it starts from the best split by stages, improved by moving single blocks, and what could not be
// searched to the end is taken not to be there. So the result is the best for small models, and for large ones as good
// as was found.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/layout/layout_loads.h"

namespace weft {

// `start`: where each stage begins, and the number of blocks, in splits with a block everywhere and, second, with the
// head alone on the last stage. Gives a split of the same form: the first kind, unless the second has a cheaper rank or
// stage. Of those whose ranks need no more than `limit` bytes, or as little as was found where none does.
std::vector<int> deal_to_ranks(const LayoutLoads& loads, std::int64_t limit,
                               const std::vector<std::vector<int>>& starts);

}  // namespace weft
