#include "trainer/rank/spikes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft {

std::string Spike::text() const {
  return fmt::format("{} {:.4f} is above {:.4f}", what, value, limit);
}

double SpikeWatch::largest_loss() const {
  if (config_.loss_deviations == 0.0 || trend_.losses < config_.window) return std::numeric_limits<double>::infinity();
  return trend_.mean + config_.loss_deviations * std::sqrt(trend_.variance);
}

SumLimits SpikeWatch::limits(double targets, double loss_scale) const {
  SumLimits limits;
  if (config_.grad_norm > 0.0) limits.square_sum = std::pow(config_.grad_norm * loss_scale, 2);
  limits.loss_sum = largest_loss() * targets;
  return limits;
}

std::optional<Spike> SpikeWatch::find(double square_sum, double loss_sum, double targets, double loss_scale) const {
  const SumLimits most = limits(targets, loss_scale);
  if (!most.exceeded_by(square_sum, loss_sum)) return std::nullopt;
  if (loss_sum > most.loss_sum) return Spike{"loss", loss_sum / targets, largest_loss(), config_.action};
  return Spike{"grad_norm", std::sqrt(square_sum) / loss_scale, config_.grad_norm, config_.action};
}

void SpikeWatch::add(double loss) {
  if (!std::isfinite(loss)) return;
  const double entering = std::min(loss, largest_loss());
  ++trend_.losses;
  const double rate = std::max(2.0 / static_cast<double>(config_.window + 1), 1.0 / static_cast<double>(trend_.losses));
  const double above = entering - trend_.mean;
  trend_.mean += rate * above;
  trend_.variance = (1.0 - rate) * (trend_.variance + rate * above * above);
}

std::optional<LossTrend> SpikeWatch::trend() const {
  return config_.loss_deviations > 0.0 ? std::optional(trend_) : std::nullopt;
}

}  // namespace weft
