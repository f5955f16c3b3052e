// Figures of a simulated step to compare schedules, layouts and residencies: its time, idle time, critical path, and
// the memory of the fullest rank. The critical path is also told by kind of work: the reasons for the length of the
// step.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/ledger.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

// Seconds of one kind of work or wait: "computation", "tensor collectives", "gathers of stage 3 on rank 3".
struct StepPart {
  std::string what;
  double seconds = 0.0;
  bool operator==(const StepPart&) const = default;
};

// Seconds of collectives inside compute actions, by group (cost_model.h). Empty if the costs do not tell them apart.
using ComputeCollectives = std::map<Group, ActionCosts>;

// The parts of the critical path, longest first; they add up to the step. The seconds of compute actions are those of
// `collectives`, and "computation" for the rest. A compute action that waits for shared adapters adds the wait to its
// collectives.
std::vector<StepPart> path_parts(const Program& program, const ActionCosts& costs, const Simulation& simulation,
                                 const ComputeCollectives& collectives);

// The same of the mean rank, with parts that add up to the step too. They are its computation and the collectives
// inside it, and its waits for gathers, reductions and rows of experts. "bubble" is the wait for messages, and either
// end of the step. `channels` are those of the simulation.
std::vector<StepPart> mean_parts(const Program& program, const ActionCosts& costs, const Simulation& simulation,
                                 const ComputeCollectives& collectives, const LaneChannels& channels);

// Collectives inside the compute actions of the step, by group; each of the rank with most. Longest first.
std::vector<StepPart> inside_computation(const Program& program, const ComputeCollectives& collectives);

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
  // Counts of a whole pipeline, with one rank per stage; only of what communicates, as WalkSummary has it.
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
