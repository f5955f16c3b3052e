// The plan of a model without training. It has the stages and shard units of a run, without everything that only
// gradients need, and a program of forwards only (parallel/pipeline/passes/passes.h).
#pragma once

#include <vector>

#include "trainer/plan/stage_plan.h"

namespace weft {

// The configuration without training. Every family is frozen, so that units have neither gradients nor optimizer state.
// There are no auxiliary losses, which only gradients need. Stages are those of the training step. Under residency
// "auto" parameters stay for one use, since the budget is that of a training step.
Config without_training(Config config);
// The same for a model that is used: without its predictors too.
Config for_inference(Config config);

// Everything that one rank needs to execute the program.
struct ForwardPlan {
  PlannedInputs inputs;
  std::vector<PlannedStage> stages;  // of this rank, ascending
  Program program;                   // of all ranks, checked
};

// The plan for the loss of config.microbatches() microbatches of text. `config` is from one of the functions above.
ForwardPlan plan_forward(const Config& config, const Mesh& mesh, const Coordinates& at);

// Assembles a plan; `plan` returns each stage of the model.
ForwardPlan assemble_forward(const Config& config, PlannedInputs inputs, int pipeline_rank, int microbatches,
                             const std::function<PlannedStage(int stage)>& plan);

}  // namespace weft
