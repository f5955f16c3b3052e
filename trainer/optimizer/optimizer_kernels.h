// The part of the optimizer that each device implements. Work is queued on the stream. Scalars that depend on the
// gradients stay in device memory, so that a step never waits for its own norm.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "parallel/runtime/device.h"
#include "parallel/runtime/ledger.h"
#include "parallel/runtime/tensor.h"
#include "trainer/config/update_rules.h"

namespace weft {

// One run of consecutive elements of one parameter, updated by one rule. All views have one size and outlive the
// update. A run that is not trained has empty gradients and is skipped.
struct UpdateRows {
  TensorView parameters;                 // float32 or bfloat16
  ConstTensorView gradients;             // float32
  TensorView first_state, second_state;  // float32 or bfloat16, both the same; empty if the rule has fewer states
  int group = 0;
  // For random bits that do not depend on the layout. They need the index of the first element in the whole parameter,
  // and a hash of the run's seed and the parameter's global name.
  std::uint64_t first_index = 0, name_key = 0;
  // For rules that need norms: index of the parameter, and whether this rank adds the run to the parameter's sums.
  // Exactly one of the ranks that hold the same elements adds them.
  std::int64_t tensor = 0;
  bool counted = true;
};
inline constexpr int most_update_groups = 8;

// Checks that RowsUpdate can update the run by `rule`. Throws Error (failure) otherwise.
void check_rows(const UpdateRows& rows, UpdateRule rule);

// Updates a fixed set of runs. `groups` are indexed by UpdateRows::group and have the rules that make_update was given.
// Every gradient is first multiplied by gradient_scale [1, 1] float32. If it is not finite the step is skipped, and
// parameters and states keep every bit.
class RowsUpdate {
 public:
  virtual ~RowsUpdate() = default;
  // sums [2 * tensors, 1] float64: for each tensor the sums of squares of its parameter and of lamb's direction, over
  // the counted runs. Zero for a tensor without counted runs; undefined if the step is skipped. The caller sums them
  // over the ranks before run(). Changes nothing else.
  virtual void norms(Stream& stream, std::span<const GroupStep> groups, ConstTensorView gradient_scale,
                     TensorView sums) = 0;
  // `sums`: the result of norms() summed over all ranks. Read only if a group needs norms.
  virtual void run(Stream& stream, std::span<const GroupStep> groups, ConstTensorView gradient_scale,
                   ConstTensorView sums) = 0;
};

// The part of Muon that each device implements: two passes over elements. If the gradient scale is not finite the step
// is void: momentum and parameters are not written.
//
// The momentum pass over one run of rows. The element views have equal sizes and do not overlap.
struct MuonMomentum {
  ConstTensorView gradients;       // float32
  ConstTensorView gradient_scale;  // [1, 1] float32
  float rate = 0.0f;               // momentum coefficient
  TensorView momentum;             // float32 or bfloat16
  TensorView update;               // float32 or bfloat16; empty if another rank sends these rows
};
struct MuonChange {
  ConstTensorView direction;       // float32 or bfloat16
  ConstTensorView gradient_scale;  // [1, 1] float32; not finite: the step is void
  float step_size = 0.0f, decay = 0.0f;
  TensorView values;  // float32
};

struct MuonKernels {
  // g = gradient_scale gradient; momentum = rate momentum + g; update = g + rate momentum (Nesterov), or zero if the
  // step is void. Computed in float32, and momentum and update are each rounded once, to the nearest, ties to even.
  void (*momentum)(Stream& stream, const MuonMomentum& rows);
  // values -= step_size direction + decay values.
  void (*change)(Stream& stream, const MuonChange& rows);
};

// Bounds of the sums of a step. A step with a larger sum is void.
struct SumLimits {
  double square_sum = std::numeric_limits<double>::infinity();  // of the gradients of the scaled loss
  double loss_sum = std::numeric_limits<double>::infinity();    // over the targets of the step, nats

  // The same comparison on every device and on the host: all of them judge alike.
  constexpr bool exceeded_by(double squares, double losses) const { return squares > square_sum || losses > loss_sum; }
};

// Limits that turn the sums of a step into the factor of its gradients.
struct UpdateLimits {
  double largest_norm = 0.0;  // gradients are scaled down to it; 0: never
  double inverse_loss_scale = 1.0;
  SumLimits void_above = {};
};

struct OptimizerKernels {
  // May wait for the device. `rules` are indexed by group. Rows of a group with the rule muon are refused.
  std::unique_ptr<RowsUpdate> (*make_update)(Stream& stream, MemoryLedger& ledger, std::vector<UpdateRows> rows,
                                             std::vector<UpdateRule> rules);
  // gradient_scale [1, 1] float32 = gradient_factor() (trainer/plan/gradient_norm.h), or NaN if the step is void. sums
  // [2, 1] float64: the sum of squares of the gradients of the scaled loss, and the sum of losses.
  void (*clip_scale)(Stream& stream, ConstTensorView sums, const UpdateLimits& limits, TensorView gradient_scale);
  MuonKernels muon;
};

OptimizerKernels cpu_optimizer_kernels();
MuonKernels cpu_muon_kernels();

}  // namespace weft

namespace weft::cuda {

// Those of a CUDA device.
OptimizerKernels optimizer_kernels();  // update.cu
MuonKernels muon_kernels();            // muon.cu

}  // namespace weft::cuda
