// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "trainer/config/config.h"

namespace weft {

// Rises linearly to `peak` over warmup_steps (step w is at w / warmup_steps of it), then follows `decay`:
//   constant  stays
//   linear    falls on a line that ends at min_lr_ratio * peak in the last step
//   cosine    falls on half a cosine wave between the same two points
//   wsd       stays, then falls on a line over the last decay_steps (0: a tenth of the run) to the same end
// Steps count from 1; past total_steps the last value holds.
double learning_rate(const SchedulerConfig& scheduler, double peak, std::int64_t step, std::int64_t total_steps);

}  // namespace weft
