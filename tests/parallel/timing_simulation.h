// A plan in time: when each op and collective runs, and how many bytes are alive at once. The careful evaluation, with
// durations that may differ from the planned ones; the search has its own (timing/clock.h).
#pragma once

#include <vector>

#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

struct TimeSpan {
  double begin = 0, end = 0;
  bool operator==(const TimeSpan&) const = default;
};

// Factors of durations, by op and by place of the channel; empty: 1.
struct TimingFactors {
  std::vector<double> ops, channel;
};

struct SimulateOptions {
  bool two_channels = false;                // reductions have a channel of their own
  std::vector<TimingFactors> factors = {};  // by rank; empty: 1
};

struct SimulatedRank {
  std::vector<TimeSpan> ops, channel;
  // Most bytes at any time. Activations are those of the running op; between two ops, the smaller of both.
  std::int64_t peak_bytes = 0;
};

struct SimulatedTiming {
  double makespan = 0;
  std::vector<SimulatedRank> ranks;
};

// `plan` must have no faults. Throws Error (failure) if the plan deadlocks.
SimulatedTiming simulate_timing(const TimingProblem& problem, const TimingPlan& plan,
                                const SimulateOptions& options = {});

}  // namespace weft
