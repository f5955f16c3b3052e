// What makes a step leave parameters and states as they are: overflows of float16 (LossScaler), and spikes.
//
// Spikes are steps with a loss or a gradient norm far above the usual ([spikes]). The limit of the loss is the mean of
// earlier losses plus some of their standard deviations. Both are exponentially weighted, with rate 2 / (window + 1)
// (Finch 2009, "Incremental calculation of weighted mean and variance", section 9); the first losses weigh the same. A
// loss above its limit enters the mean as that limit: one spike hardly moves it, and a lasting rise becomes usual after
// some time.
//
// The norm has a fixed limit and one that is a multiple of the mean of earlier norms, weighted in the same way. A norm
// above that multiple, or of a step without an update, does not enter the mean. Above a smaller multiple a norm is told
// and no more.
//
// A plain value, the same on every rank, because every rank sees the same sums.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/config/config.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {

// Mean and variance of the losses of a run, in nats and their square.
struct LossTrend {
  std::int64_t losses = 0;  // that have entered
  double mean = 0.0, variance = 0.0;
  bool operator==(const LossTrend&) const = default;
};

// Mean of the gradient norms of a run, before clipping and of the loss itself.
struct NormTrend {
  std::int64_t norms = 0;  // that have entered
  double mean = 0.0;
  bool operator==(const NormTrend&) const = default;
};

struct Spike {
  std::string_view what;  // "loss" or "grad_norm", as in metrics.jsonl
  double value = 0.0, limit = 0.0;
  SpikeAction action = SpikeAction::log;
  std::optional<double> mean = {};  // of norms, where the limit is a multiple of it

  std::string text() const;  // "loss 9.1234 is above 7.3012", "grad_norm 250.0000 is above 200.0000 (mean 2.0000)"
  bool operator==(const Spike&) const = default;
};

class SpikeWatch {
 public:
  explicit SpikeWatch(const SpikesConfig& config) : config_(config) {}

  // Whether a step with a spike leaves parameters and states as they are.
  bool voids() const { return config_.action != SpikeAction::log; }
  // Limits of the next step, of `targets` targets that count and with this loss scale; infinite where nothing is a
  // spike.
  SumLimits limits(double targets, double loss_scale) const;
  // The spike of a step with these sums (SumLimits), if it has one. Of two spikes that of the loss.
  std::optional<Spike> find(double square_sum, double loss_sum, double targets, double loss_scale) const;
  // The norm of a step with these gradients, if it is to be told without being a spike.
  std::optional<Spike> find_warning(double square_sum, double loss_scale) const;
  // Called after each step that was taken, with its loss in nats a target. A loss that is not finite is left out.
  void add(double loss);
  // Called after each step with an update, with its norm.
  void add_norm(double norm);

  // For checkpoints; nothing if losses are not watched, or no norm has entered a mean.
  std::optional<LossTrend> trend() const;
  std::optional<NormTrend> norm_trend() const;
  void resume(const std::optional<LossTrend>& trend, const std::optional<NormTrend>& norms) {
    trend_ = trend.value_or(LossTrend{});
    norms_ = norms.value_or(NormTrend{});
  }

 private:
  double largest_loss() const;  // nats a target
  double largest_norm() const;
  double times_mean_norm(double factor) const;  // infinite for a factor of 0, and while the first norms enter

  SpikesConfig config_;
  LossTrend trend_;
  NormTrend norms_;
};

// Loss scaling for computation or reduction in float16, which underflows for small gradients: "Mixed precision
// training" (Micikevicius et al. 2018, section 3.2), with the usual dynamic scale. A step with overflowed gradients is
// skipped on all ranks and halves the scale; training.loss_scale_growth_steps good steps in a row double it. A plain
// value, the same on every rank, because every rank sees the same norm.
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
