// What a device brings to the optimizer. Work is queued on the stream; scalars that depend on the gradients stay in
// device memory, so that a step never waits for its own norm.
#pragma once

#include <memory>
#include <vector>

#include "parallel/runtime/ledger.h"
#include "trainer/optimizer/adamw.h"

namespace weft {

// One run of elements that AdamW updates. All four are float32 and of one size; they outlive the update.
struct AdamwRows {
  TensorView parameters;
  ConstTensorView gradients;
  TensorView first_moment, second_moment;
  bool decayed = false;
};

// Updates a fixed set of rows.
class AdamwUpdate {
 public:
  virtual ~AdamwUpdate() = default;
  // gradient_scale [1, 1] float32 multiplies every gradient first. Rows that are not decayed take no weight decay.
  virtual void run(Stream& stream, const AdamwStep& step, ConstTensorView gradient_scale) = 0;
};

struct OptimizerKernels {
  // Set-up may wait for the device.
  std::unique_ptr<AdamwUpdate> (*make_adamw)(Stream& stream, MemoryLedger& ledger, std::vector<AdamwRows> rows);
  // gradient_scale [1, 1] float32 = min(1, largest / sqrt(square_sum)), 1 when `largest` is 0 (no clipping); square_sum
  // [1, 1] float64.
  void (*clip_scale)(Stream& stream, ConstTensorView square_sum, double largest, TensorView gradient_scale);
};

OptimizerKernels cpu_optimizer_kernels();

}  // namespace weft
