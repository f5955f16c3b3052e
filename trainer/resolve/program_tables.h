// The tables of a step's program: all stages, reductions in flight and the update.
#pragma once

#include <vector>

#include "parallel/pipeline/program/program.h"
#include "trainer/config/config.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// The tables with sizes as seen from a rank's coordinates.
ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at);
// The same for a given result of stage_layout().
ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at,
                             const std::vector<StageBlocks>& layout);

}  // namespace weft
