#include "trainer/optimizer/adamw.h"

#include <cmath>

#include "parallel/runtime/error.h"
#include "parallel/runtime/multiversion.h"
#include "trainer/gradient_norm.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {
namespace {

// One pass over memory: four arrays read, three written. Every fused multiply-add is written out: left to the compiler,
// the vector loop and its scalar rest might fuse differently, and an element's bits would depend on where a shard ends.
// Moments move towards their target (m + rate (g - m)) so that a beta rounded to float32 cannot make them drift.
WEFT_MULTIVERSION void update_loop(AdamwFactors factors, float gradient_scale, float* parameters,
                                   const float* gradients, float* first_moment, float* second_moment,
                                   std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = gradient_scale * gradients[i];
    const float first = std::fma(factors.first_rate, gradient - first_moment[i], first_moment[i]);
    const float second =
        std::fma(factors.second_rate, std::fma(gradient, gradient, -second_moment[i]), second_moment[i]);
    const float ratio = first / std::fma(std::sqrt(second), factors.second_scale, factors.eps);
    const float change = std::fma(factors.decay, parameters[i], factors.step_size * ratio);
    first_moment[i] = first;
    second_moment[i] = second;
    parameters[i] -= change;
  }
}

}  // namespace

AdamwFactors adamw_factors(const AdamwStep& step) {
  require(step.step >= 1, "steps count from 1");
  const auto exponent = static_cast<double>(step.step);
  return {
      .first_rate = static_cast<float>(1.0 - step.beta1),
      .second_rate = static_cast<float>(1.0 - step.beta2),
      .step_size = static_cast<float>(step.learning_rate / (1.0 - std::pow(step.beta1, exponent))),
      .second_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(step.beta2, exponent))),
      .eps = static_cast<float>(step.eps),
      .decay = static_cast<float>(step.learning_rate * step.weight_decay),
  };
}

void adamw_update(const AdamwStep& step, float gradient_scale, std::span<float> parameters,
                  std::span<const float> gradients, std::span<float> first_moment, std::span<float> second_moment) {
  require(gradients.size() == parameters.size() && first_moment.size() == parameters.size() &&
              second_moment.size() == parameters.size(),
          "gradient and moments are as long as the parameters");
  update_loop(adamw_factors(step), gradient_scale, parameters.data(), gradients.data(), first_moment.data(),
              second_moment.data(), static_cast<std::int64_t>(parameters.size()));
}

namespace {

class CpuAdamw final : public AdamwUpdate {
 public:
  explicit CpuAdamw(std::vector<AdamwRows> rows) : rows_(std::move(rows)) {}
  void run(Stream&, const AdamwStep& step, ConstTensorView gradient_scale) override {
    AdamwStep without_decay = step;
    without_decay.weight_decay = 0.0;
    for (const AdamwRows& rows : rows_) {
      adamw_update(rows.decayed ? step : without_decay, gradient_scale.as<float>()[0], rows.parameters.as<float>(),
                   rows.gradients.as<float>(), rows.first_moment.as<float>(), rows.second_moment.as<float>());
    }
  }

 private:
  std::vector<AdamwRows> rows_;
};

std::unique_ptr<AdamwUpdate> make_cpu_adamw(Stream&, MemoryLedger&, std::vector<AdamwRows> rows) {
  return std::make_unique<CpuAdamw>(std::move(rows));
}

void cpu_clip_scale(Stream&, ConstTensorView square_sum, double largest, TensorView gradient_scale) {
  gradient_scale.as<float>()[0] = static_cast<float>(clip_factor(std::sqrt(square_sum.as<double>()[0]), largest));
}

}  // namespace

OptimizerKernels cpu_optimizer_kernels() {
  return {make_cpu_adamw, cpu_clip_scale};
}

}  // namespace weft
