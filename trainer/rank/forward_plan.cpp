#include "trainer/rank/forward_plan.h"

#include <algorithm>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/passes/passes.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/unit_policy.h"

namespace weft {

Config without_training(Config config) {
  if (is_solved(config)) {
    for (auto& [family, policy] : config.shard_by_family) {
      policy.residency = {Residency::reshard_after_use};
      policy.residency_by_stage.clear();
    }
    config.memory_budget.reset();
  }
  // Fixes the stages of the training step: a different batch must not change them.
  config.pipeline.layout = to_string(stage_layout(config), config.model);
  config.pipeline.first_stage_blocks = config.pipeline.last_stage_blocks = std::nullopt;
  config.training.frozen = {Family::dense,     Family::experts, Family::routing,
                            Family::embedding, Family::head,    Family::root};
  // Without a backward there are no saved activations, so recompute saves nothing.
  config.training.recompute = Recompute::none;
  config.model.moe.router_aux_loss_coef = config.model.moe.router_z_loss_coef = 0.0;
  return config;
}

Config for_inference(Config config) {
  config = without_training(std::move(config));
  std::vector<StageBlocks> layout = stage_layout(config);
  for (StageBlocks& blocks : layout) {
    blocks.count = std::clamp(config.model.layers() - blocks.first, 0, blocks.count);
  }
  config.model = without_predictors(std::move(config.model));
  config.pipeline.layout = to_string(layout, config.model);
  return config;
}

ForwardPlan assemble_forward(const Config& config, PlannedInputs inputs, int pipeline_rank, int microbatches,
                             const std::function<PlannedStage(int stage)>& plan) {
  ProgramTables tables = stage_tables(config, inputs.boundary, plan);
  tables.forward_only = true;
  ForwardPlan result;
  result.inputs = std::move(inputs);
  result.program = compile_forward(tables, config.parallelism.pipeline, microbatches);
  check(result.program);
  for (const int stage : stages_of_rank(config, pipeline_rank)) result.stages.push_back(plan(stage));
  return result;
}

ForwardPlan plan_forward(const Config& config, const Mesh& mesh, const Coordinates& at) {
  return assemble_forward(config, plan_inputs(config, at), at.pp, static_cast<int>(config.microbatches()),
                          [&, layout = stage_layout(config)](int stage) {
                            return without_predictors(plan_stage(config, mesh, at, stage, layout), config.model);
                          });
}

}  // namespace weft
