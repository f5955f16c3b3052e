// The formulas of trainer/config/update_rules.h for one element, written once for every device. `Math` provides the
// rounded operations. A compiler must not fuse two of them. An element's bits would then depend on the device, or on
// the place where a vector loop ends and its scalar rest begins. Fused multiply-adds are written out.
//
// Moments are updated as m + rate (g - m), so that a beta rounded to float32 cannot make them drift.
#pragma once

#include <cstdint>

#include "parallel/runtime/dtype.h"
#include "trainer/config/update_rules.h"
#include "trainer/optimizer/stochastic_rounding.h"

// nvcc compiles these for the device, every other compiler for the host.
#ifdef __CUDACC__
#define WEFT_ELEMENT __device__ inline
#else
#define WEFT_ELEMENT WEFT_INLINE
#endif

namespace weft {

// The values of one element that a rule reads and writes. A rule does not touch states that it does not have. The
// gradient is already scaled.
struct ElementValues {
  float parameter = 0, first = 0, second = 0;
};

template <typename Math>
struct AdamwElement {
  static constexpr int states = 2;

  // Updates the moments and returns the change to subtract from the parameter.
  WEFT_ELEMENT static float direction(const UpdateFactors& factors, float gradient, ElementValues& of) {
    of.first = Math::fma(factors.first_rate, Math::subtract(gradient, of.first), of.first);
    of.second = Math::fma(factors.second_rate, Math::fma(gradient, gradient, -of.second), of.second);
    const float ratio = Math::divide(of.first, Math::fma(Math::root(of.second), factors.second_scale, factors.eps));
    return Math::fma(factors.decay, of.parameter, Math::multiply(factors.step_size, ratio));
  }
  WEFT_ELEMENT static void update(const UpdateFactors& factors, float, float gradient, ElementValues& of) {
    const float change = direction(factors, gradient, of);
    of.parameter = Math::subtract(of.parameter, change);
  }
};

template <typename Math>
struct LambElement {
  static constexpr int states = 2;

  // `rate` is lamb_rate() of the parameter.
  WEFT_ELEMENT static void update(const UpdateFactors& factors, float rate, float gradient, ElementValues& of) {
    const float direction = AdamwElement<Math>::direction(factors, gradient, of);
    of.parameter = Math::fma(-rate, direction, of.parameter);
  }
};

// SGD without momentum.
template <typename Math>
struct SgdElement {
  static constexpr int states = 0;

  WEFT_ELEMENT static void update(const UpdateFactors& factors, float, float gradient, ElementValues& of) {
    const float change = Math::fma(factors.decay, of.parameter, Math::multiply(factors.step_size, gradient));
    of.parameter = Math::subtract(of.parameter, change);
  }
};

template <typename Math>
struct MomentumElement {
  static constexpr int states = 1;

  WEFT_ELEMENT static void update(const UpdateFactors& factors, float rate, float gradient, ElementValues& of) {
    of.first = Math::fma(factors.momentum, of.first, gradient);
    SgdElement<Math>::update(factors, rate, of.first, of);
  }
};

template <typename Math>
struct LionElement {
  static constexpr int states = 1;

  WEFT_ELEMENT static void update(const UpdateFactors& factors, float, float gradient, ElementValues& of) {
    const float away = Math::subtract(gradient, of.first);
    const float interpolated = Math::fma(factors.first_rate, away, of.first);
    const float sign = interpolated > 0.0f ? 1.0f : interpolated < 0.0f ? -1.0f : 0.0f;
    const float change = Math::fma(factors.decay, of.parameter, Math::multiply(factors.step_size, sign));
    of.parameter = Math::subtract(of.parameter, change);
    of.first = Math::fma(factors.second_rate, away, of.first);
  }
};

// The learning rate times the trust ratio, from sums of squares over the whole parameter.
WEFT_ELEMENT float lamb_rate(const UpdateFactors& factors, double parameter_squares, double direction_squares) {
  if (!(parameter_squares > 0.0) || !(direction_squares > 0.0)) return factors.learning_rate;
  return static_cast<float>(factors.learning_rate * (sqrt(parameter_squares) / sqrt(direction_squares)));
}

// Elements as they are stored. Writing a bfloat16 takes 16 random bits; writing a float32 needs none.
template <typename Math>
WEFT_ELEMENT float widened(float element) {
  return element;
}
template <typename Math>
WEFT_ELEMENT float widened(bfloat16 element) {
  return Math::from_bits(static_cast<std::uint32_t>(element.bits) << 16);
}
template <typename Math>
WEFT_ELEMENT void assign_rounded(float& element, float value, std::uint32_t) {
  element = value;
}
template <typename Math>
WEFT_ELEMENT void assign_rounded(bfloat16& element, float value, std::uint32_t random) {
  element.bits = round_stochastically(Math::to_bits(value), random);
}

}  // namespace weft
