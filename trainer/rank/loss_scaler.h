// The scale of the loss where something is computed or reduced in float16, whose smallest numbers are not small enough
// for gradients: "Mixed precision training" (Micikevicius et al. 2018, section 3.2), with the dynamic scale that became
// usual. A step whose gradients overflow is left out on all ranks and halves the scale; so many good steps in a row
// double it. A plain value, the same on every rank, because every rank sees the same norm.
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
  // What the next step multiplies its loss by.
  double scale() const { return scale_; }
  // Steps that have changed the parameters; the schedule of the learning rate counts these.
  std::int64_t good_steps() const { return good_steps_; }
  // Of these, the last ones since the scale changed.
  std::int64_t good_in_a_row() const { return in_a_row_; }
  // Goes on where a run was saved; the scale stays as it begins where that run had none.
  void resume(std::int64_t good_steps, std::int64_t good_in_a_row, std::optional<double> scale);
  // After a step whose gradient norm was finite, or was not.
  void end_step(bool finite);

 private:
  bool active_;
  double scale_;
  std::int64_t growth_steps_;
  std::int64_t good_steps_ = 0, in_a_row_ = 0;
};

}  // namespace weft
