// What a plan does in time: when each op and collective runs, and how many bytes there are at once. The careful
// evaluation, with durations that differ from the planned ones; the search has its own (timing/clock.h).
#pragma once

#include <vector>

#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

struct TimeSpan {
  double begin = 0, end = 0;
  bool operator==(const TimeSpan&) const = default;
};

// What durations are multiplied by, by op and by place of the channel; empty: 1.
struct TimingFactors {
  std::vector<double> ops, channel;
};

struct SimulateOptions {
  bool two_channels = false;                // reductions have their own
  std::vector<TimingFactors> factors = {};  // by rank; empty: 1
};

struct SimulatedRank {
  std::vector<TimeSpan> ops, channel;
  // Most bytes at any time. Activations are those of the op that runs; between two ops, the fewer of both.
  std::int64_t peak_bytes = 0;
};

struct SimulatedTiming {
  double makespan = 0;
  std::vector<SimulatedRank> ranks;
};

// `plan` must have no faults. Throws Error (failure) where it stands still.
SimulatedTiming simulate_timing(const TimingProblem& problem, const TimingPlan& plan,
                                const SimulateOptions& options = {});

}  // namespace weft
