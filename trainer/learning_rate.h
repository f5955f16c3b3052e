// The learning rate of a step: linear warm-up to the peak, then a decay.
#pragma once

#include "trainer/config.h"

namespace weft {

// `step` counts from 1 to total_steps. Warm-up reaches `peak` at step warmup_steps; linear and cosine decay reach
// min_lr_ratio * peak at the last step; wsd stays at the peak and falls linearly over the last decay_steps.
double learning_rate(const SchedulerConfig& schedule, double peak, std::int64_t step, std::int64_t total_steps);

}  // namespace weft
