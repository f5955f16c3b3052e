#include "trainer/optimizer/adamw.h"

#include <cmath>

#include "parallel/runtime/error.h"
#include "parallel/runtime/multiversion.h"

namespace weft {
namespace {

// What a step is to every element, computed in double and rounded once.
struct Factors {
  float gradient_scale;
  float first_rate, second_rate;  // 1 - beta
  float step_size;                // learning_rate / (1 - beta1^step)
  float second_scale;             // 1 / sqrt(1 - beta2^step)
  float eps;
  float decay;  // learning_rate * weight_decay
};

// One pass over memory: four arrays read, three written. Every fused multiply-add is written out: left to the compiler,
// the vector loop and its scalar rest might fuse differently, and an element's bits would depend on where a shard ends.
// Moments move towards their target (m + rate (g - m)) so that a beta rounded to float32 cannot make them drift.
WEFT_MULTIVERSION void update_loop(Factors factors, float* parameters, const float* gradients, float* first_moment,
                                   float* second_moment, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = factors.gradient_scale * gradients[i];
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

void adamw_update(const AdamwStep& step, std::span<float> parameters, std::span<const float> gradients,
                  std::span<float> first_moment, std::span<float> second_moment) {
  require(gradients.size() == parameters.size() && first_moment.size() == parameters.size() &&
              second_moment.size() == parameters.size(),
          "gradient and moments are as long as the parameters");
  require(step.step >= 1, "steps count from 1");
  const auto exponent = static_cast<double>(step.step);
  const Factors factors{
      .gradient_scale = static_cast<float>(step.gradient_scale),
      .first_rate = static_cast<float>(1.0 - step.beta1),
      .second_rate = static_cast<float>(1.0 - step.beta2),
      .step_size = static_cast<float>(step.learning_rate / (1.0 - std::pow(step.beta1, exponent))),
      .second_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(step.beta2, exponent))),
      .eps = static_cast<float>(step.eps),
      .decay = static_cast<float>(step.learning_rate * step.weight_decay),
  };
  update_loop(factors, parameters.data(), gradients.data(), first_moment.data(), second_moment.data(),
              static_cast<std::int64_t>(parameters.size()));
}

}  // namespace weft
