// The CPU's exponential (layers/kernels/cpu/vector_math.h), operation by operation: scores that decide a choice of
// experts have the same bits on every device.
#pragma once

#include <cuda_runtime.h>

namespace weft::cuda {

__device__ inline float exponential(float x) {
  constexpr float round_to_integer = 12582912.0f;
  constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  constexpr float smallest = -87.336544f, largest = 88.722839f;
  const float shifted = fmaf(x, 1.44269504f, round_to_integer);
  const float n = shifted - round_to_integer;
  const float r = fmaf(n, -ln2_low, fmaf(n, -ln2_high, x));
  float series = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
  series = fmaf(series, r, 8.3334519073e-3f);
  series = fmaf(series, r, 4.1665795894e-2f);
  series = fmaf(series, r, 1.6666665459e-1f);
  series = fmaf(series, r, 5.0000001201e-1f);
  series = fmaf(series, r * r, r) + 1.0f;
  float result = __uint_as_float(__float_as_uint(series) + (__float_as_uint(shifted) << 23));
  result = x < smallest ? 0.0f : result;
  result = x > largest ? __uint_as_float(0x7f800000u) : result;
  return x == x ? result : x;
}

__device__ inline float logistic(float x) {
  return 1.0f / (1.0f + exponential(-x));
}

__device__ inline float softplus(float x) {
  const float t = exponential(-fabsf(x));
  const float z = t / (2.0f + t), w = z * z;
  float series = fmaf(1.0f / 15.0f, w, 1.0f / 13.0f);
  series = fmaf(series, w, 1.0f / 11.0f);
  series = fmaf(series, w, 1.0f / 9.0f);
  series = fmaf(series, w, 1.0f / 7.0f);
  series = fmaf(series, w, 1.0f / 5.0f);
  series = fmaf(series, w, 1.0f / 3.0f);
  series = fmaf(series, w, 1.0f);
  return fmaf(2.0f * z, series, x > 0.0f ? x : 0.0f);
}

// Of the CPU's, for gradients: these need not have the same bits.
__device__ inline float sqrt_softplus_slope(float s) {
  const float y = s * s;
  float series = fmaf(y, 1.0f / 5040.0f, -1.0f / 720.0f);
  series = fmaf(y, series, 1.0f / 120.0f);
  series = fmaf(y, series, -1.0f / 24.0f);
  series = fmaf(y, series, 1.0f / 6.0f);
  series = fmaf(y, series, -0.5f);
  series = fmaf(y, series, 1.0f);
  return y < 0.25f ? 0.5f * s * series : (1.0f - exponential(-y)) / (2.0f * s);
}

}  // namespace weft::cuda
