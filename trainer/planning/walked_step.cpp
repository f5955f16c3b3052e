#include "trainer/planning/walked_step.h"

#include "parallel/runtime/error.h"
#include "trainer/layout/laid_out_stages.h"
#include "trainer/optimizer/update_plan.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

WalkedStep walk_step(const Config& given, int pipeline_rank, bool segments) {
  const ResolvedRun run(given);
  const Config& config = run.config();
  const Mesh& mesh = run.mesh();
  if (pipeline_rank < 0 || pipeline_rank >= config.parallelism.pipeline) {
    fail_request("pipeline rank {} is not one of the {} of parallelism.pipeline", pipeline_rank,
                 config.parallelism.pipeline);
  }
  WalkedStep step{.mesh = mesh, .rank = mesh.rank_at(pipeline_rank, 0, 0, 0, 0)};
  const Coordinates at = mesh.coordinates(step.rank);
  step.program = step_program(run, at);
  step.state = static_bytes(plan_stages(config, mesh, at));
  const WalkState state{step.state.total(), update_bytes(config, mesh, at).total()};
  step.lines = walk(step.program, mesh, step.rank, state, segments);
  step.summary = summarize(step.lines, state);
  return step;
}

}  // namespace weft
