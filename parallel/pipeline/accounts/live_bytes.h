// Bytes of a rank beside those that it holds all step, action by action along its list. The largest sum is
// transient_peak (check/check.h); the same walk computes both.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

struct LiveBytes {
  // In this order: gathered parameters and parts kept for islands; accumulators and reduction inputs in flight; the
  // copies that reductions read, and their results; bytes that segments keep of microbatches.
  std::int64_t unsharded_parameters = 0, unsharded_gradients = 0, communication = 0, activations = 0;

  std::int64_t total() const { return unsharded_parameters + unsharded_gradients + communication + activations; }
  bool operator==(const LiveBytes&) const = default;
};

struct LiveAction {
  LiveBytes after = {};         // after the action
  LiveBytes most = {};          // maximum of each kind during the action, each at its own instant
  std::int64_t most_total = 0;  // maximum of their sum

  bool operator==(const LiveAction&) const = default;
};

// By position in the list of a pipeline rank. A malformed action changes nothing.
std::vector<LiveAction> live_bytes(const Program& program, int pipeline_rank);

}  // namespace weft
