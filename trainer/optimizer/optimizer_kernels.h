// What a device brings to the optimizer. Work is queued on the stream; scalars that depend on the gradients stay in
// device memory, so that a step never waits for its own norm.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "parallel/runtime/ledger.h"
#include "trainer/config/update_rules.h"
#include "trainer/optimizer/muon_kernels.h"

namespace weft {

// One run of consecutive elements of one parameter, stepped alike. All views have one size and outlive the update; the
// gradients of what is not trained are empty, and such a run is passed over.
struct UpdateRows {
  TensorView parameters;                 // float32 or bfloat16
  ConstTensorView gradients;             // float32
  TensorView first_state, second_state;  // float32 or bfloat16, of one dtype; empty where the rule has fewer
  int group = 0;
  // For random bits that do not depend on the layout: the first element's place in the whole parameter, and a hash of
  // the run's seed and the parameter's global name.
  std::uint64_t first_index = 0, name_key = 0;
  // For rules that need norms: which parameter of the model this is, and whether this rank enters the run into its
  // sums. Of ranks that hold the same elements one does.
  std::int64_t tensor = 0;
  bool counted = true;
};
inline constexpr int most_update_groups = 8;

// What RowsUpdate demands of a run that `rule` steps. Throws Error (failure).
void check_rows(const UpdateRows& rows, UpdateRule rule);

// Updates a fixed set of runs. `groups` are indexed by UpdateRows::group and have the rules that the update was made
// for. gradient_scale [1, 1] float32 multiplies every gradient first; where it is not finite the step is skipped, and
// parameters and states keep every bit.
class RowsUpdate {
 public:
  virtual ~RowsUpdate() = default;
  // sums [2 * tensors, 1] float64 = for each tensor the sums of squares of its parameter and of lamb's direction over
  // the counted runs; zero where there are none, and of no meaning where the step is skipped. Sum them over the ranks
  // before run(). Changes nothing else.
  virtual void norms(Stream& stream, std::span<const GroupStep> groups, ConstTensorView gradient_scale,
                     TensorView sums) = 0;
  // `sums` as norms() left them, over all ranks; not read unless a group needs norms.
  virtual void run(Stream& stream, std::span<const GroupStep> groups, ConstTensorView gradient_scale,
                   ConstTensorView sums) = 0;
};

struct OptimizerKernels {
  // Set-up may wait for the device. `rules` by group; whole matrices are none of its business.
  std::unique_ptr<RowsUpdate> (*make_update)(Stream& stream, MemoryLedger& ledger, std::vector<UpdateRows> rows,
                                             std::vector<UpdateRule> rules);
  // gradient_scale [1, 1] float32 = gradient_factor() (trainer/plan/gradient_norm.h); square_sum [1, 1] float64, of
  // gradients of the scaled loss.
  void (*clip_scale)(Stream& stream, ConstTensorView square_sum, double largest, double inverse_loss_scale,
                     TensorView gradient_scale);
  MuonKernels muon;
};

OptimizerKernels cpu_optimizer_kernels();

}  // namespace weft
