// What a rank holds beside what it holds all step, action by action along its list. The largest sum is transient_peak
// (check/check.h), which is found by the same walk.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

struct LiveBytes {
  // Gathered, and parts that islands keep; accumulators and inputs of reductions in flight; copies that reductions
  // read; what segments keep of microbatches.
  std::int64_t unsharded_parameters = 0, unsharded_gradients = 0, communication = 0, activations = 0;

  std::int64_t total() const { return unsharded_parameters + unsharded_gradients + communication + activations; }
  bool operator==(const LiveBytes&) const = default;
};

struct LiveAction {
  LiveBytes after = {};         // once the action is over
  LiveBytes most = {};          // of each kind while it runs, each at its own instant
  std::int64_t most_total = 0;  // of their sum

  bool operator==(const LiveAction&) const = default;
};

// By position in the list of a pipeline rank. An action that means nothing in these tables changes nothing.
std::vector<LiveAction> live_bytes(const Program& program, int pipeline_rank);

}  // namespace weft
