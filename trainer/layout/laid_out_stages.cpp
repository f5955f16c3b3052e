#include "trainer/layout/laid_out_stages.h"

#include "trainer/layout/stage_layout.h"

namespace weft {

PlannedStage plan_stage(const Config& config, const Mesh& mesh, const Coordinates& at, int stage) {
  return plan_stage(config, mesh, at, stage, stage_layout(config));
}

std::vector<PlannedStage> plan_stages(const Config& config, const Mesh& mesh, const Coordinates& at) {
  return plan_stages(config, mesh, at, stage_layout(config));
}

}  // namespace weft
