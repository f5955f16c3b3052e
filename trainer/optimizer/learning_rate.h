// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/config/config.h"

namespace weft {

// The rate rises linearly to `peak` over warmup_steps (step w has peak * w / warmup_steps), then follows `decay`:
//   constant  stays
//   linear    falls on a line that ends at min_lr_ratio * peak in the last step
//   cosine    falls on half a cosine wave between the same two points
//   wsd       stays, then falls on a line over the last decay_steps (0: a tenth of the run) to the same end
// Steps count from 1; past total_steps the last value holds.
double learning_rate(const SchedulerConfig& scheduler, double peak, std::int64_t step, std::int64_t total_steps);

// A rate, and the parameter groups that are updated with this rate.
struct GroupRate {
  std::vector<UpdateGroup> groups;
  double rate = 0.0;
  bool operator==(const GroupRate&) const = default;
};
// Groups with at least one trained parameter.
std::vector<UpdateGroup> trained_groups(const Config& config);
// The rates of `groups` in step `step`, one entry for each distinct rate. No entry if nothing is trained.
std::vector<GroupRate> learning_rates(const Config& config, std::span<const UpdateGroup> groups, std::int64_t step);

}  // namespace weft
