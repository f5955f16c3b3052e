#include "trainer/rank/spikes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Of the last of `count` values that have entered a mean.
double weight_of_last(std::int64_t count, std::int64_t window) {
  return std::max(2.0 / static_cast<double>(window + 1), 1.0 / static_cast<double>(count));
}

// The sum of squares of the gradients of the scaled loss, from the norm of those of the loss.
double square_sum_of(double norm, double loss_scale) {
  return std::pow(norm * loss_scale, 2);
}

// Limits of the scale. If gradients still overflow at the smallest scale, the scale is not the cause. Doubling beyond
// the largest scale has no benefit.
constexpr double smallest_scale = 0x1p-14, largest_scale = 0x1p24;

}  // namespace

std::string Spike::text() const {
  return fmt::format("{} {:.4f} is above {:.4f}{}", what, value, limit,
                     mean ? fmt::format(" (mean {:.4f})", *mean) : std::string());
}

double SpikeWatch::largest_loss() const {
  if (config_.loss_deviations == 0.0 || trend_.losses < config_.window) return infinity;
  return trend_.mean + config_.loss_deviations * std::sqrt(trend_.variance);
}

double SpikeWatch::times_mean_norm(double factor) const {
  return factor == 0.0 || norms_.norms < config_.window ? infinity : factor * norms_.mean;
}

double SpikeWatch::largest_norm() const {
  return std::min(config_.grad_norm > 0.0 ? config_.grad_norm : infinity, times_mean_norm(config_.grad_norm_spike));
}

SumLimits SpikeWatch::limits(double targets, double loss_scale) const {
  return {.square_sum = square_sum_of(largest_norm(), loss_scale), .loss_sum = largest_loss() * targets};
}

std::optional<Spike> SpikeWatch::find(double square_sum, double loss_sum, double targets, double loss_scale) const {
  const SumLimits most = limits(targets, loss_scale);
  if (!most.exceeded_by(square_sum, loss_sum)) return std::nullopt;
  if (loss_sum > most.loss_sum) return Spike{"loss", loss_sum / targets, largest_loss(), config_.action};
  Spike spike{"grad_norm", std::sqrt(square_sum) / loss_scale, largest_norm(), config_.action};
  if (spike.limit == times_mean_norm(config_.grad_norm_spike)) spike.mean = norms_.mean;
  return spike;
}

std::optional<Spike> SpikeWatch::find_warning(double square_sum, double loss_scale) const {
  const double limit = times_mean_norm(config_.grad_norm_warning);
  if (square_sum <= square_sum_of(limit, loss_scale) || square_sum > square_sum_of(largest_norm(), loss_scale)) {
    return std::nullopt;
  }
  return Spike{"grad_norm", std::sqrt(square_sum) / loss_scale, limit, SpikeAction::log, norms_.mean};
}

void SpikeWatch::add(double loss) {
  if (!std::isfinite(loss)) return;
  const double entering = std::min(loss, largest_loss());
  ++trend_.losses;
  const double rate = weight_of_last(trend_.losses, config_.window);
  const double above = entering - trend_.mean;
  trend_.mean += rate * above;
  trend_.variance = (1.0 - rate) * (trend_.variance + rate * above * above);
}

void SpikeWatch::add_norm(double norm) {
  if (!config_.watches_mean_norm() || norm > times_mean_norm(config_.grad_norm_spike)) return;
  ++norms_.norms;
  norms_.mean += weight_of_last(norms_.norms, config_.window) * (norm - norms_.mean);
}

std::optional<LossTrend> SpikeWatch::trend() const {
  return config_.loss_deviations > 0.0 ? std::optional(trend_) : std::nullopt;
}

std::optional<NormTrend> SpikeWatch::norm_trend() const {
  return config_.watches_mean_norm() && norms_.norms > 0 ? std::optional(norms_) : std::nullopt;
}

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
  if (active_ && ++in_a_row_ >= growth_steps_) {
    if (scale_ < largest_scale) scale_ *= 2;
    in_a_row_ = 0;
  }
}

}  // namespace weft
