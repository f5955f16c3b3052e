// Loss scaling for computation or reduction in float16, which underflows for small gradients: "Mixed precision
// training" (Micikevicius et al. 2018, section 3.2), with the usual dynamic scale. A step with overflowed gradients is
// skipped on all ranks and halves the scale; training.loss_scale_growth_steps good steps in a row double it. A plain
// value, the same on every rank, because every rank sees the same norm.
#pragma once

#include <cstdint>
#include <optional>

#include "trainer/config/config.h"

namespace weft {

class LossScaler {
 public:
  explicit LossScaler(const Config& config);

  // Whether anything is scaled; otherwise the scale is 1 and an overflow is an error.
  bool active() const { return active_; }
  // Factor of the loss in the next step.
  double scale() const { return scale_; }
  // Steps that have changed the parameters; the learning rate schedule counts these steps.
  std::int64_t good_steps() const { return good_steps_; }
  // Good steps since the last overflow, or since the last loss_scale_growth_steps in a row.
  std::int64_t good_in_a_row() const { return in_a_row_; }
  // Continues from a checkpoint. The scale keeps its initial value if the checkpoint has none.
  void resume(std::int64_t good_steps, std::int64_t good_in_a_row, std::optional<double> scale);
  // Called after each step; `finite`: whether the gradient norm was finite.
  void end_step(bool finite);

 private:
  bool active_;
  double scale_;
  std::int64_t growth_steps_;
  std::int64_t good_steps_ = 0, in_a_row_ = 0;
};

}  // namespace weft
