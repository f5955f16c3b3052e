// The stages of a configuration as its layout assigns blocks to them. Finding an automatic layout takes time: to plan
// several stages, call stage_layout() once (stage_layout.h) and plan with its result (stage_plan.h).
#pragma once

#include <vector>

#include "trainer/plan/stage_plan.h"

namespace weft {

PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage);
// All stages of the rank with these coordinates, ascending.
std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at);

}  // namespace weft
