// A simulated step in the figures by which schedules, layouts and residencies are compared: how long it takes, what of
// it nobody computes in, what the fullest rank holds, and what the critical path goes through.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/simulation/simulated_step.h"
#include "parallel/runtime/ledger.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

// What the critical path goes through, as long as it does.
struct PathShare {
  enum class Kind : std::uint8_t { compute, gathers, reductions, messages, update };
  Kind kind = Kind::compute;
  int rank = 0;                   // pipeline rank; of messages and the update 0
  std::optional<int> stage = {};  // of compute, gathers and reductions
  double seconds = 0.0;
  std::string text() const;  // "compute of stage 3 on rank 3"
  bool operator==(const PathShare&) const = default;
};

// For what a rank's compute lane stands still, added up over the step.
struct StandStill {
  int rank = 0;
  Wait wait = Wait::nothing;
  int other = 0;  // rank that ended what was waited for
  double seconds = 0.0;
  std::string text() const;  // "rank 0 for messages from rank 1"
  bool operator==(const StandStill&) const = default;
};

struct StepForecast {
  std::string layout;  // as text, also where it was dealt
  double seconds = 0.0;
  double bubble = 0.0;                                     // share of the step, mean over ranks
  double exposed_gathers = 0.0, exposed_reductions = 0.0;  // seconds that compute waits, of the rank with most
  // At the largest sum of a rank, as the ledger counts along its list with tokens routed evenly (dry_run.h); of the
  // rank with most.
  int fullest_rank = 0;
  BucketBytes peak;
  std::optional<std::int64_t> worst_peak_bytes = {};  // whatever is routed where; absent where routing does not decide
  // Of a whole pipeline, by one rank of each stage.
  int gathers = 0, reductions = 0;
  std::int64_t gathered_bytes = 0;
  std::vector<RankTimes> times;           // by pipeline rank
  std::vector<PathShare> path;            // longest first; they add up to `seconds`
  std::vector<StandStill> longest_waits;  // longest first
};

// The step of a run in time, and what its ledgers count: dry runs by pipeline rank.
struct ForecastStep {
  Program program;
  SimulatedStep step;
  std::vector<DryRun> ranks;
};

// `program` is that of the rank at `at`. Throws Error (failure) when a rank waits for ever.
ForecastStep simulate_run(const ResolvedRun& run, Program program, const ProgramCosts& costs,
                          const LaneChannels& channels, const Coordinates& at = {});

StepForecast forecast_of(const ResolvedRun& run, const ForecastStep& simulated);

}  // namespace weft
