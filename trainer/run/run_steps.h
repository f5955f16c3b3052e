// The life of a run: ranks start, load, take steps one by one, validate, save and stop.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "trainer/checkpoint/rank_checkpoints.h"
#include "trainer/rank/launch.h"
#include "trainer/rank/metrics.h"
#include "trainer/run/rank_run.h"
#include "trainer/run/run_directory.h"

namespace weft {

// Called on the thread of every rank, except `admit`. Observers must guard data that several ranks share.
struct RunObserver {
  std::function<void(RankRun&)> before_first_step;
  std::function<void(RankRun&, const StepMetrics&)> after_step;
  Admission admit;
  std::function<void(const RunHashes&)> identified;  // called once in each process, before its first step
};

// Timed as the first rank of the process saw it.
struct TrainResult : RunFigures {
  std::int64_t steps_taken = 0;     // of the run, with those before the checkpoint
  bool stopped = false;             // a stop request ended the run before the last step
  std::string stopping_spike = {};  // a sentence on the spike that ended it, or empty
};

// Requests to a run. Polled by every process of the run, on the thread of its first rank.
struct RunRequests {
  std::function<bool()> stop = [] { return false; };  // save and stop
  std::function<bool()> save = [] { return false; };  // save and continue; true once for each request
  std::function<void()> begin = [] {};                // called once, before the first step
  std::function<std::string()> stopped_by = [] { return std::string("a request"); };  // what asked to stop
};

// The folder of the run's checkpoint after a step, there or not.
std::filesystem::path checkpoint_after(const Config& config, std::int64_t step);

// Runs the ranks of this process and returns when they are done. Uses the backend of run.device if `make_backend` is
// empty, and starts from the checkpoint chosen by [checkpoint]. Writes only checkpoints, with the hashes of the run in
// place of those of `checkpoints`. What `timer` has not counted yet is start-up. Throws Error with the first failure.
TrainResult run_steps(const Config& config, const RunObserver& observer = {}, const BackendFactory& make_backend = {},
                      const CheckpointSetup& checkpoints = {}, const RunRequests& requests = {},
                      const RunTimer& timer = {});

}  // namespace weft
