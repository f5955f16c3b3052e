// One stage of a configuration's layout.
#pragma once

#include "trainer/layout/stage_layout.h"

namespace weft {

// With the blocks that stage_layout() assigns to it.
inline PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage) {
  return plan_stage(config, mesh, at, stage, stage_layout(config));
}

}  // namespace weft
