// When each rank gathers and reduces its units: the answer to a TimingProblem, all of it by op position. Positions, not
// times, decide residency: the bytes that a plan reserves are an upper bound for any durations.
//
// - A gather starts when op `after` has ended, the collectives before it in the channel have ended, and the reductions
//   that the compute lane waits for at or before op `after` + 1 have ended: it may take their room. The gathered
//   parameters are there from op `after` + 1 to the end of op `until`.
// - Island parts of a unit are there from the end of one interval until the first read of the next.
// - A gradient is there from op `first` until the compute lane has waited for its reduction, before op `wait`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/pipeline/timing/problem.h"

namespace weft {

struct TimedGather {
  int unit = 0;
  int after = -1;  // the op whose end triggers it; -1: the start of the step
  int need = 0;    // the first op that reads it
  int until = 0;   // the last op that reads it; then dropped

  bool operator==(const TimedGather&) const = default;
};

struct TimedReduction {
  int unit = 0;
  int first = 0;  // the first op that adds to this gradient
  int after = 0;  // the last such op; its end triggers the reduction
  int wait = 0;   // compute waits for the reduction before this op; the number of ops: the end of the step

  bool operator==(const TimedReduction&) const = default;
};

// One place of a rank's channel. Gathers and reductions share the channel, in the same order on all replicas.
struct TimedCollective {
  bool reduction = false;
  int index = 0;  // into gathers or reductions

  bool operator==(const TimedCollective&) const = default;
};

struct TimingRankPlan {
  std::vector<TimedGather> gathers;        // by need
  std::vector<TimedReduction> reductions;  // by after
  std::vector<TimedCollective> channel;

  bool operator==(const TimingRankPlan&) const = default;
};

struct TimingPlan {
  std::vector<TimingRankPlan> ranks;

  bool operator==(const TimingPlan&) const = default;
};

// Bytes reserved at each op of a rank, activations included.
std::vector<std::int64_t> reserved_bytes(const TimingRank& rank, const TimingRankPlan& plan);
// The integral of the reserved bytes over positions, of all ranks. A list counts byte-steps alike (live_bytes.h).
std::int64_t reserved_byte_steps(const TimingProblem& problem, std::span<const TimingRankPlan> plans);

}  // namespace weft
