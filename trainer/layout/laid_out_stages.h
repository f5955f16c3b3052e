// The stages of a configuration as its layout deals blocks to them. Dealing many takes its time: whoever plans several
// deals once (stage_layout.h) and plans by what came of it (stage_plan.h).
#pragma once

#include <vector>

#include "trainer/plan/stage_plan.h"

namespace weft {

PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage);
// All that the rank with these coordinates runs, ascending.
std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at);

}  // namespace weft
