#include "trainer/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "parallel/runtime/error.h"
#include "trainer/config/update_groups.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

// The last step at the peak. A warm-up that reaches into the final decay of wsd shortens the decay.
std::int64_t decay_begin(const SchedulerConfig& scheduler, std::int64_t total_steps) {
  if (scheduler.decay != Decay::wsd) return scheduler.warmup_steps;
  const std::int64_t decay_steps =
      scheduler.decay_steps > 0 ? scheduler.decay_steps : std::max<std::int64_t>(total_steps / 10, 1);
  return std::max(scheduler.warmup_steps, total_steps - decay_steps);
}

}  // namespace

double learning_rate(const SchedulerConfig& scheduler, double peak, std::int64_t step, std::int64_t total_steps) {
  require(step >= 1, "steps count from 1");
  if (step < scheduler.warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(scheduler.warmup_steps);
  }
  const std::int64_t begin = decay_begin(scheduler, total_steps);
  if (scheduler.decay == Decay::constant || step <= begin) return peak;
  // Exactly 0 in step `begin` and exactly 1 in the last step.
  const double progress = step >= total_steps ? 1.0 : static_cast<double>(step - begin) / (total_steps - begin);
  const double remaining =
      scheduler.decay == Decay::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
  return peak * (scheduler.min_lr_ratio + (1.0 - scheduler.min_lr_ratio) * remaining);
}

std::vector<UpdateGroup> trained_groups(const Config& config) {
  std::set<UpdateGroup> groups;
  // Blocks of one kind have the same parameters, so one block of each kind is enough: a model may have a hundred
  // thousand parameters.
  ModelConfig each_kind = config.model;
  std::ranges::sort(each_kind.blocks);
  each_kind.blocks.erase(std::ranges::unique(each_kind.blocks).begin(), each_kind.blocks.end());
  each_kind.mtp_depth = std::min(each_kind.mtp_depth, 1);
  for (const ParameterSpec& parameter : model_parameters(each_kind)) {
    if (config.training.trains(parameter.family)) groups.insert(update_group_of(parameter));
  }
  return {groups.begin(), groups.end()};
}

std::vector<GroupRate> learning_rates(const Config& config, std::span<const UpdateGroup> groups, std::int64_t step) {
  const ResolvedGroups options = resolved_groups(config);
  std::vector<GroupRate> rates;
  for (const UpdateGroup group : groups) {
    const double peak = options[group].learning_rate;
    const double rate = learning_rate(config.lr_scheduler, peak, step, config.run.steps);
    const auto same = std::ranges::find(rates, rate, &GroupRate::rate);
    (same == rates.end() ? rates.emplace_back(GroupRate{{}, rate}) : *same).groups.push_back(group);
  }
  return rates;
}

}  // namespace weft
