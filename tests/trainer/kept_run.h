// A run with the metrics of all its steps, which the run itself forgets.
#pragma once

#include <vector>

#include "trainer/run/run_steps.h"

namespace weft {

struct KeptRun : TrainResult {
  std::vector<StepMetrics> steps;
};

// As run_steps; those of the first rank of this process are kept.
inline KeptRun run_kept(const Config& config, RunObserver observer = {}, const BackendFactory& make_backend = {},
                        const CheckpointSetup& checkpoints = {}, const RunRequests& requests = {}) {
  KeptRun kept;
  const int first_rank = first_rank_of_process(config);
  observer.after_step = [&kept, first_rank, told = observer.after_step](RankRun& run, const StepMetrics& metrics) {
    if (run.rank() == first_rank) kept.steps.push_back(metrics);
    if (told) told(run, metrics);
  };
  static_cast<TrainResult&>(kept) = run_steps(config, observer, make_backend, checkpoints, requests);
  return kept;
}

}  // namespace weft
