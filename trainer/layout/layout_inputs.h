// The inputs of the automatic layout: the demands of a model's pieces on a rank, and the microbatches that the schedule
// keeps.
#pragma once

#include "trainer/config/config.h"
#include "trainer/layout/automatic_layout.h"

namespace weft {

// Costs are modelled: matrix-product operations of a forward (step_flops.h). Bytes come from the plan of a stage with
// one block of each kind: those of a rank with everything of a unit there at once, and the least. Units are assumed to
// hold one block at most.
LayoutItems modelled_items(const Config& config);

// The same, with costs from the table of pipeline.costs if it names one: the seconds of a microbatch, forward and
// backward. Throws Error (request) with the faults of the file.
LayoutItems layout_items(const Config& config);

// As one_stage_each() if each rank runs one stage and there is no memory limit, otherwise from the compute order.
// Throws Error (request) if the schedule refuses the numbers.
ScheduleResidents schedule_residents(const Config& config);

}  // namespace weft
