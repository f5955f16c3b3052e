// AdamW (Loshchilov and Hutter 2019): Adam with bias correction and decay applied to the weights, not to the gradient.
// Element-wise: any split of a parameter over ranks gives the same bits.
#pragma once

#include <cstdint>
#include <span>

namespace weft {

struct AdamwStep {
  double learning_rate = 0.0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.0;
  std::int64_t step = 1;        // from 1
  double gradient_scale = 1.0;  // multiplies gradients first (the clip factor)
};

// All spans are float32 and of one length; moments start at zero.
void adamw_update(const AdamwStep& update, std::span<float> parameters, std::span<const float> gradients,
                  std::span<float> first_moment, std::span<float> second_moment);

}  // namespace weft
