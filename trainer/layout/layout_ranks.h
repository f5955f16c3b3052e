// The configured schedule as the automatic layout weighs it: who runs which stage, and what that order has ranks keep.
#pragma once

#include <vector>

#include "parallel/pipeline/program/action.h"
#include "trainer/config/config.h"
#include "trainer/layout/automatic_layout.h"

namespace weft {

// From the compute actions of a rank and its stages, ascending: what it keeps at its fullest instants, as LayoutRanks
// has them. A microbatch is kept from its forward to the end of its backward, or of its weight gradient where that
// comes apart.
std::vector<std::vector<int>> kept_microbatches(const std::vector<Action>& actions, const std::vector<int>& stages);

// Where each rank runs one stage and no memory limit asks for the order, as one_stage_each() has it. Throws Error
// (request) when the schedule refuses the numbers.
LayoutRanks layout_ranks(const Config& config);

}  // namespace weft
