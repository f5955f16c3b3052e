// The configured schedule for the automatic layout: which rank runs each stage, and the microbatches that ranks keep.
#pragma once

#include <vector>

#include "parallel/pipeline/program/action.h"
#include "trainer/config/config.h"
#include "trainer/layout/automatic_layout.h"

namespace weft {

// Microbatches that a rank keeps at its fullest instants, as in ScheduleResidents::kept, from its compute actions and
// its stages in ascending order. A microbatch is kept from its forward to the end of its backward, or of its weight
// gradient if that is a separate action.
std::vector<std::vector<int>> kept_microbatches(const std::vector<Action>& actions, const std::vector<int>& stages);

// As one_stage_each() if each rank runs one stage and there is no memory limit, otherwise from the compute order.
// Throws Error (request) if the schedule refuses the numbers.
ScheduleResidents schedule_residents(const Config& config);

}  // namespace weft
