// The optimizer of one rank: AdamW over the rows the rank owns, whatever unit they come from. State lies beside the shard it
// belongs to, in float32.
#pragma once

#include <vector>

#include "parallel/runtime/ledger.h"
#include "parallel/runtime/phase_clock.h"
#include "parallel/shard/unit.h"
#include "trainer/config.h"

namespace weft {

class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, MemoryLedger& ledger, PhaseClock& clock)
      : config_(config), ledger_(ledger), clock_(clock) {}

  // Takes on the rows of one unit; `shard_size` elements of state, indexed like the shard. The rows outlive the optimizer.
  void add(std::vector<OwnedRows> rows, std::int64_t shard_size);
  // `step` counts from 1. Gradients are multiplied by `gradient_scale` first (the clip factor). Vectors (norm weights) are
  // not decayed.
  void step(double learning_rate, std::int64_t step, double gradient_scale);

 private:
  struct Part {
    std::vector<OwnedRows> rows;
    Tensor first_moment, second_moment;
  };

  OptimizerConfig config_;
  MemoryLedger& ledger_;
  PhaseClock& clock_;
  std::vector<Part> parts_;
};

}  // namespace weft
