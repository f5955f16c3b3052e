#include "trainer/resolve/program_tables.h"

#include "trainer/layout/stage_layout.h"
#include "trainer/optimizer/update_plan.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at) {
  return program_tables(config, mesh, at, stage_layout(config));
}

ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at,
                             const std::vector<StageBlocks>& layout) {
  ProgramTables tables = stage_tables(config, plan_inputs(config, at).boundary,
                                      [&](int stage) { return plan_stage(config, mesh, at, stage, layout); });
  tables.reduce_inputs = config.reduce_inputs;
  tables.update = update_collectives(config, mesh, at);
  return tables;
}

}  // namespace weft
