// The formulas of trainer/config/update_rules.h for one element, written once for every device. `Math` provides the
// rounded operations. A compiler must not fuse two of them. An element's bits would then depend on the device, or on
// the place where a vector loop ends and its scalar rest begins. Fused multiply-adds are written out.
//
// Moments are updated as m + rate (g - m), so that a beta rounded to float32 cannot make them drift. Numbers that are
// kept in bfloat16 may be rounded stochastically.
#pragma once

#include <cstdint>

#include "parallel/runtime/dtype.h"
#include "trainer/config/update_rules.h"

// nvcc compiles these for the device, every other compiler for the host.
#ifdef __CUDACC__
#define WEFT_ELEMENT __device__ inline
#else
#define WEFT_ELEMENT WEFT_INLINE
#endif

namespace weft {

// Stochastic rounding to bfloat16: up or down with the probability that makes the mean exact. So changes far below the
// last bit of a parameter add up over steps instead of vanishing. The random bits are a function of the run's seed, the
// step, the parameter's global name, the element's index in the parameter and the array. They depend neither on the
// layout nor on the device. Compiled for the CPU and, as constexpr, by nvcc for the GPU.
//
// The bits come from SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", with
// Stafford's mix 13). Its n-th output is mix(start + n gamma): a counter-based generator with two multiplications an
// element. Philox takes twenty, which would slow down a kernel that is otherwise bound by memory.
inline constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15u;

constexpr std::uint64_t mix_bits(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

// Start of the random numbers of one parameter in one step. `name_key` hashes the run's seed and the global name.
constexpr std::uint64_t rounding_start(std::uint64_t name_key, std::int64_t step) {
  return mix_bits(name_key ^ mix_bits(static_cast<std::uint64_t>(step) * golden_gamma));
}
// 64 random bits of one element; bits_for() takes 16 of them for each array.
constexpr std::uint64_t rounding_bits(std::uint64_t start, std::uint64_t index) {
  return mix_bits(start + (index + 1) * golden_gamma);
}
enum class RoundedArray : std::uint8_t { parameters, first_state, second_state };
constexpr std::uint32_t bits_for(RoundedArray array, std::uint64_t bits) {
  return static_cast<std::uint32_t>(bits >> (16 * static_cast<int>(array))) & 0xffffu;
}

// The bits of a bfloat16, from the bits of a float32 and 16 random bits. The lower 16 bits of the float32 are its
// distance from the bfloat16 towards zero, in 2^-16 of a step. Adding 16 random bits carries into the upper half with
// exactly this probability. Exact values and infinities stay; NaN stays NaN. The step above the largest finite value is
// infinity.
constexpr std::uint16_t round_stochastically(std::uint32_t value, std::uint32_t random) {
  const bool is_nan = (value & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(is_nan ? (value >> 16) | 0x40u : (value + random) >> 16);
}

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
