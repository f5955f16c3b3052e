// The optimizer of one rank: AdamW over the rows the rank owns, whatever unit they come from. State lies beside the
// shard it belongs to, in float32.
#pragma once

#include <vector>

#include "parallel/runtime/phase_clock.h"
#include "parallel/shard/unit.h"
#include "trainer/config.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {

class Optimizer {
 public:
  // Everything handed in outlives the optimizer.
  Optimizer(const OptimizerConfig& config, const OptimizerKernels& kernels, Stream& stream, MemoryLedger& ledger,
            PhaseClock& clock)
      : config_(config), kernels_(kernels), stream_(stream), ledger_(ledger), clock_(clock) {}

  // Takes on the rows of one unit; `shard_size` elements of state, indexed like the shard. The rows outlive the
  // optimizer. Vectors (norm weights) are not decayed. Before the first step only.
  void add(const std::vector<OwnedRows>& rows, std::int64_t shard_size);
  // `step` counts from 1. Gradients are multiplied by gradient_scale [1, 1] float32 first (the clip factor).
  void step(double learning_rate, std::int64_t step, ConstTensorView gradient_scale);

 private:
  OptimizerConfig config_;
  const OptimizerKernels& kernels_;
  Stream& stream_;
  MemoryLedger& ledger_;
  PhaseClock& clock_;
  std::vector<Tensor> moments_;
  std::vector<AdamwRows> rows_;
  std::unique_ptr<AdamwUpdate> update_;  // over rows_, made by the first step
};

}  // namespace weft
