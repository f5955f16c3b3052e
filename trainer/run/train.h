// A whole run: ranks started, steps taken, metrics on disk, the console told.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpoint/rank_checkpoints.h"
#include "trainer/rank/launch.h"
#include "trainer/rank/metrics.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/run/rank_run.h"
#include "trainer/run/run_directory.h"

namespace weft {

class Console;

// Called on every rank's own thread, except `admit`; observers of several ranks must guard what they share.
struct RunObserver {
  std::function<void(RankRun&)> before_first_step;
  std::function<void(RankRun&, const StepMetrics&)> after_step;
  Admission admit;
};

struct TrainResult {
  RunTotals totals;                              // of the steps taken here; a checkpoint has those before
  bool stopped = false;                          // a signal asked for the end before the last step
  std::vector<BucketBytes> predicted, measured;  // by rank, at the last step's peak
};

// What a run is asked to do while it goes on. Polled by every process of the run, on the thread of its first rank.
struct RunRequests {
  std::function<bool()> stop = [] { return false; };  // save and leave
  std::function<bool()> save = [] { return false; };  // save and go on; true once for each request
  std::function<void()> begin = [] {};                // told once, before the first step
};

// Runs the ranks of this process, on what run.device says unless told otherwise, from the checkpoint that [checkpoint]
// goes on with, and returns when they are done. Writes nothing but checkpoints. Throws Error with the first failure.
TrainResult run_steps(const Config& config, const RunObserver& observer = {}, const BackendFactory& make_backend = {},
                      const CheckpointSetup& checkpoints = {}, const RunRequests& requests = {});

// The same with everything that `weft train` leaves behind in run.directory (config.toml, metrics.jsonl, summary.json)
// and tells the console.
TrainResult train(const ResolvedConfig& resolved, const RunRecord& record, Console& console,
                  const RunRequests& requests = {});

}  // namespace weft
