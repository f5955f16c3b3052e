#include "trainer/rank/loss_scaler.h"

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Limits of the scale. If gradients still overflow at the smallest scale, the scale is not the cause. Doubling beyond
// the largest scale has no benefit.
constexpr double smallest_scale = 0x1p-14, largest_scale = 0x1p24;

}  // namespace

LossScaler::LossScaler(const Config& config)
    : active_(uses_float16(config)),
      scale_(active_ ? config.training.initial_loss_scale : 1.0),
      growth_steps_(config.training.loss_scale_growth_steps) {}

void LossScaler::resume(std::int64_t good_steps, std::int64_t good_in_a_row, std::optional<double> scale) {
  good_steps_ = good_steps;
  if (!active_ || !scale) return;
  scale_ = *scale;
  in_a_row_ = good_in_a_row;
}

void LossScaler::end_step(bool finite) {
  require(finite || active_, "an overflow without a loss scale has ended the run");
  if (!finite) {
    if (scale_ <= smallest_scale) fail("gradients overflow whatever the loss scale: it has come down to {}", scale_);
    scale_ /= 2;
    in_a_row_ = 0;
    return;
  }
  ++good_steps_;
  if (active_ && ++in_a_row_ == growth_steps_) {
    if (scale_ < largest_scale) scale_ *= 2;
    in_a_row_ = 0;
  }
}

}  // namespace weft
