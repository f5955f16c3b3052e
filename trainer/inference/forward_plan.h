// The model without training, planned: the same stages and shard units as a run's, but nothing that only gradients
// need, and a program of forwards alone (parallel/pipeline/passes/passes.h).
#pragma once

#include <vector>

#include "trainer/plan/stage_plan.h"

namespace weft {

// The configuration of a run whose model is used and not trained: every family frozen, so that units have neither
// gradients nor optimizer state, and no auxiliary losses, which only gradients need. Stages stay as the training step
// has them. Throws Error (request) where parameters are gathered as a plan of the training step says (residency
// "auto"): there is no such step.
Config without_training(Config config);

// All that one rank needs to walk the program.
struct ForwardPlan {
  PlannedInputs inputs;
  std::vector<PlannedStage> stages;  // of this rank, ascending
  Program program;                   // of all ranks, checked
  PredictedMemory predicted;
};

// The loss of config.microbatches() microbatches of text. `config` is without_training().
ForwardPlan plan_forward(const Config& config, const Mesh& mesh, const Coordinates& at);

// Puts a plan together from stages that `plan` gives, all of the model.
ForwardPlan assemble_forward(const Config& config, PlannedInputs inputs, int pipeline_rank, int microbatches,
                             const std::function<PlannedStage(int stage)>& plan);

}  // namespace weft
