#include "trainer/optimizer/adamw.h"

#include <cmath>

#include "parallel/runtime/error.h"
#include "parallel/runtime/multiversion.h"

namespace weft {
namespace {

struct Factors {
  float scale, beta1, beta2, keep, rate, second_correction, eps;
};

WEFT_MULTIVERSION void update_loop(const Factors& f, float* parameter, const float* gradient, float* first,
                                   float* second, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * f.scale;
    first[i] = f.beta1 * first[i] + (1.0f - f.beta1) * g;
    second[i] = f.beta2 * second[i] + (1.0f - f.beta2) * g * g;
    parameter[i] = parameter[i] * f.keep - f.rate * first[i] / (std::sqrt(second[i] * f.second_correction) + f.eps);
  }
}

}  // namespace

void adamw_update(const AdamwStep& update, std::span<float> parameters, std::span<const float> gradients,
                  std::span<float> first_moment, std::span<float> second_moment) {
  require(parameters.size() == gradients.size() && parameters.size() == first_moment.size() &&
              parameters.size() == second_moment.size(),
          "parameters, gradients and moments have one length");
  const auto step = static_cast<double>(update.step);
  const Factors factors{static_cast<float>(update.gradient_scale),
                        static_cast<float>(update.beta1),
                        static_cast<float>(update.beta2),
                        static_cast<float>(1.0 - update.learning_rate * update.weight_decay),
                        static_cast<float>(update.learning_rate / (1.0 - std::pow(update.beta1, step))),
                        static_cast<float>(1.0 / (1.0 - std::pow(update.beta2, step))),
                        static_cast<float>(update.eps)};
  update_loop(factors, parameters.data(), gradients.data(), first_moment.data(), second_moment.data(),
              static_cast<std::int64_t>(parameters.size()));
}

}  // namespace weft
