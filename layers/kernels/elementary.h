// Elementary functions with the same bits on every device: scores that decide a choice of experts are made of them. On
// the CPU the compiler turns them into vector code inside `#pragma omp simd` loops: no tables, no branches. glibc
// offers its vector versions only under -ffast-math, which would give up NaN and infinity.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "parallel/runtime/dtype.h"

namespace weft {

// e^x to within 2 units in the last place. Results below the smallest normal number become zero, results above the
// largest number infinity; NaN stays NaN. Method: x = n ln 2 + r with |r| <= ln(2) / 2, a polynomial for e^r (Cephes,
// expf), then n is added to the exponent.
WEFT_INLINE WEFT_ON_ANY_DEVICE float exponential(float x) {
  constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23: a number added to it is rounded to an integer
  constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  constexpr float smallest = -87.336544f, largest = 88.722839f;
  const float shifted = std::fma(x, 1.44269504f, round_to_integer);
  const float n = shifted - round_to_integer;
  const float r = std::fma(n, -ln2_low, std::fma(n, -ln2_high, x));
  float series = std::fma(1.9875691500e-4f, r, 1.3981999507e-3f);
  series = std::fma(series, r, 8.3334519073e-3f);
  series = std::fma(series, r, 4.1665795894e-2f);
  series = std::fma(series, r, 1.6666665459e-1f);
  series = std::fma(series, r, 5.0000001201e-1f);
  series = std::fma(series, r * r, r) + 1.0f;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;
  float result = std::bit_cast<float>(std::bit_cast<std::uint32_t>(series) + exponent);
  result = x < smallest ? 0.0f : result;
  result = x > largest ? std::numeric_limits<float>::infinity() : result;
  return x == x ? result : x;
}

// 1 / (1 + e^-x), exactly 0 and 1 at the far ends.
WEFT_INLINE WEFT_ON_ANY_DEVICE float logistic(float x) {
  return 1.0f / (1.0f + exponential(-x));
}

// log(1 + e^x). With t = e^-|x| and z = t / (2 + t), log(1 + t) = 2 (z + z^3 / 3 + z^5 / 5 + ...), where z <= 1 / 3.
WEFT_INLINE WEFT_ON_ANY_DEVICE float softplus(float x) {
  const float t = exponential(-std::fabs(x));
  const float z = t / (2.0f + t), w = z * z;
  float series = std::fma(1.0f / 15.0f, w, 1.0f / 13.0f);
  series = std::fma(series, w, 1.0f / 11.0f);
  series = std::fma(series, w, 1.0f / 9.0f);
  series = std::fma(series, w, 1.0f / 7.0f);
  series = std::fma(series, w, 1.0f / 5.0f);
  series = std::fma(series, w, 1.0f / 3.0f);
  series = std::fma(series, w, 1.0f);
  return std::fma(2.0f * z, series, x > 0.0f ? x : 0.0f);
}

// The derivative of s = sqrt(log(1 + e^x)) by x, known by s: (1 - e^-y) / (2 s) with y = s^2, near 0 by its series.
WEFT_INLINE WEFT_ON_ANY_DEVICE float sqrt_softplus_slope(float s) {
  const float y = s * s;
  float series = std::fma(y, 1.0f / 5040.0f, -1.0f / 720.0f);
  series = std::fma(y, series, 1.0f / 120.0f);
  series = std::fma(y, series, -1.0f / 24.0f);
  series = std::fma(y, series, 1.0f / 6.0f);
  series = std::fma(y, series, -0.5f);
  series = std::fma(y, series, 1.0f);
  const float far = (1.0f - exponential(-y)) / (2.0f * s);
  return y < 0.25f ? 0.5f * s * series : far;
}

}  // namespace weft
