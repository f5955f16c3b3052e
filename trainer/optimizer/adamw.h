// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2), element by element:
//   g = gradient_scale * gradient
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p = p - learning_rate (weight_decay p + (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps))
// The decay acts on the parameter itself and is not scaled by the moments. Nothing but its own four numbers decides an
// element, so the result does not depend on how parameters are cut into shards.
#pragma once

#include <cstdint>
#include <span>

namespace weft {

struct AdamwStep {
  double learning_rate = 0.0;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
  std::int64_t step = 1;  // from 1: moments start at zero before the first
};

// What a step is to every element, computed in double and rounded once.
struct AdamwFactors {
  float first_rate = 0, second_rate = 0;  // 1 - beta
  float step_size = 0;                    // learning_rate / (1 - beta1^step)
  float second_scale = 0;                 // 1 / sqrt(1 - beta2^step)
  float eps = 0;
  float decay = 0;  // learning_rate * weight_decay
};
AdamwFactors adamw_factors(const AdamwStep& step);

// Updates parameters and both moments in place on the calling thread; spans have equal sizes and do not overlap.
// `gradient_scale` is the factor of gradient clipping.
void adamw_update(const AdamwStep& step, float gradient_scale, std::span<float> parameters,
                  std::span<const float> gradients, std::span<float> first_moment, std::span<float> second_moment);

}  // namespace weft
