#include "trainer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {

double learning_rate(const SchedulerConfig& schedule, double peak, std::int64_t step, std::int64_t total_steps) {
  if (step < schedule.warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  // How far into the decay: 0 at its start, 1 at the last step.
  const auto progress_over = [&](std::int64_t length) {
    const auto into = static_cast<double>(step - (total_steps - length));
    return length <= 0 ? 0.0 : std::clamp(into / static_cast<double>(length), 0.0, 1.0);
  };
  const double floor = schedule.min_lr_ratio;
  const std::int64_t after_warmup = total_steps - schedule.warmup_steps;
  switch (schedule.decay) {
    case Decay::constant: return peak;
    case Decay::linear: return peak * (1.0 - (1.0 - floor) * progress_over(after_warmup));
    case Decay::cosine: {
      const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress_over(after_warmup)));
      return peak * (floor + (1.0 - floor) * cosine);
    }
    case Decay::wsd: {
      const std::int64_t wanted = schedule.decay_steps > 0 ? schedule.decay_steps : total_steps / 10;
      return peak * (1.0 - (1.0 - floor) * progress_over(std::min(wanted, after_warmup)));
    }
  }
  return peak;
}

}  // namespace weft
