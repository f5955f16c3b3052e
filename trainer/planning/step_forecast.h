// Figures of a simulated step to compare schedules, layouts and residencies: its time, idle time, critical path, and
// the memory of the fullest rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/runtime/ledger.h"
#include "trainer/planning/step_path.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

struct StepForecast {
  std::string layout;  // as text, also if it was dealt
  double seconds = 0.0;
  double bubble = 0.0;  // share of the step, mean over ranks
  StepWaits waits;
  // Peak bytes as the ledger counts them along the rank's list, with tokens routed evenly (dry_run.h); of the rank with
  // most.
  int fullest_rank = 0;
  BucketBytes peak;
  std::optional<std::int64_t> worst_peak_bytes = {};  // over all routings; absent if routing does not change it
  // Counts of a whole pipeline, with one rank per stage.
  int gathers = 0, reductions = 0;
  std::int64_t gathered_bytes = 0;
  std::vector<RankTimes> times;         // by pipeline rank
  std::vector<StepPart> path;           // "compute of stage 3 on rank 3", longest first; they add up to `seconds`
  std::vector<StepPart> longest_waits;  // "rank 0 for messages from rank 1": of compute lanes; longest first
};

// The simulated step of a run, and its ledgers' bytes: one dry run per pipeline rank.
struct ForecastStep {
  Program program;
  SimulatedStep step;
  std::vector<DryRun> ranks;
};

// `program` is that of the rank at `at`. Throws Error (failure) if a rank waits forever.
ForecastStep simulate_run(const ResolvedRun& run, Program program, const ProgramCosts& costs,
                          const LaneChannels& channels, const Coordinates& at = {});

StepForecast forecast_of(const ResolvedRun& run, const ForecastStep& simulated);

// Bytes that the stages and ranks of a layout hold, as the ledgers of a run count them. They come from dry runs
// (dry_run.h) of the first rank of each pipeline position. Bytes of one rank.
struct LayoutMemory {
  // By stage: bytes of activations and routing tables that the forwards of a microbatch leave. The second microbatch is
  // counted if there is one.
  std::vector<RoutedBytes> kept;
  // By pipeline rank: bytes before the first action, and the peak of a step.
  std::vector<BucketBytes> before;
  std::vector<RoutedBytes> peak;
};

LayoutMemory layout_memory(const ResolvedRun& run);

}  // namespace weft
