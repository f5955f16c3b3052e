// The common parts of both roundings to 8 bits: many factors in each launch, scales and numbers.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <span>
#include <vector>

#include "layers/kernels/float8.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {

inline constexpr int float8_factors_at_once = 24;  // 2 KiB of parameters of a kernel

template <typename T>
struct Float8Operand {
  const T* source;
  std::uint8_t* rounded;
  float* scales;
  std::int64_t rows, columns, rounded_rows, rounded_columns, scale_columns;
  ScaledBlock each;
  bool turned, e5m2, vectors;  // vectors: the source's rows can be read in vectors
};
// The factors of a launch, by blockIdx.y.
template <typename T>
struct Float8Operands {
  Float8Operand<T> at[float8_factors_at_once];
};

template <typename E>
auto float8_operand(const Float8Factor& factor) {
  const auto& [source, transpose, rounded, each, scales] = factor;
  return Float8Operand<typename DeviceElement<E>::type>{elements<E>(source),
                                                        reinterpret_cast<std::uint8_t*>(rounded.data()),
                                                        elements<float>(scales),
                                                        source.rows(),
                                                        source.columns(),
                                                        rounded.rows(),
                                                        rounded.columns(),
                                                        scales.columns(),
                                                        each,
                                                        transpose == Transpose::yes,
                                                        rounded.dtype() == DType::float8_e5m2,
                                                        vectorise(source.dtype(), source.columns(), {source})};
}

// Launches the kernel for all factors; blocks_of(factor) are those that a factor has work for.
template <typename T, typename BlocksOf>
void launch_for(cudaStream_t stream, const std::vector<Float8Operand<T>>& factors, int threads, BlocksOf blocks_of,
                void (*kernel)(Float8Operands<T>)) {
  constexpr std::int64_t most_blocks = 4096;
  for (std::size_t first = 0; first < factors.size(); first += float8_factors_at_once) {
    const std::size_t count = std::min<std::size_t>(float8_factors_at_once, factors.size() - first);
    Float8Operands<T> some{};
    std::int64_t blocks = 1;
    for (std::size_t i = 0; i < count; ++i) {
      some.at[i] = factors[first + i];
      blocks = std::max<std::int64_t>(blocks, blocks_of(some.at[i]));
    }
    launch(stream, dim3(static_cast<unsigned>(std::min(blocks, most_blocks)), static_cast<unsigned>(count)), threads, 0,
           kernel, some);
  }
}

// See scale_of in layers/kernels/cpu/float8.cpp. 448 = 1.75 * 2^8, 57,344 = 1.75 * 2^15.
__device__ inline float float8_scale(unsigned magnitude, bool e5m2) {
  if (magnitude >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
  const unsigned exponent_of_largest = e5m2 ? 15 : 8;
  const unsigned exponent = max((magnitude + 0x1fffffu) >> 23, exponent_of_largest + 27u);
  return __uint_as_float((exponent - exponent_of_largest) << 23);
}
__device__ inline std::uint8_t float8_rounded(float value, bool e5m2) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}

// Two at once, the first in the lower byte: one instruction.
__device__ inline std::uint16_t float8_rounded(float first, float second, bool e5m2) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}
// An even number of elements, rounded with the same inverse scale.
template <int N>
__device__ Vector<std::uint16_t, N / 2> float8_rounded(const float (&values)[N], float inverse, bool e5m2) {
  Vector<std::uint16_t, N / 2> rounded;
#pragma unroll
  for (int i = 0; i < N; i += 2) rounded[i / 2] = float8_rounded(values[i] * inverse, values[i + 1] * inverse, e5m2);
  return rounded;
}
// Stores pairs as bytes; the address is a multiple of the bytes stored.
template <int N>
__device__ void store_float8(std::uint8_t* to, const Vector<std::uint16_t, N>& pairs) {
  store_vector(reinterpret_cast<std::uint16_t*>(to), pairs);
}

// Bits of magnitudes are ordered like magnitudes, with NaN last; their maximum depends on no order.
__device__ inline unsigned magnitude_bits(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}

// Elements [left, left + 8) of the rows [top, top + Rows) on their way to a thread; zeros outside of the source. The
// vectors of all rows are loaded without a branch, in which each load would be waited for.
inline constexpr int float8_run = 8;
template <typename T, int Rows>
struct LoadedRows {
  static constexpr int width = Vector<T>::size < float8_run ? Vector<T>::size : float8_run, parts = float8_run / width;
  Vector<T, width> vectors[Rows][parts];
  unsigned inside = 0;  // a bit for each vector

  __device__ void load(const Float8Operand<T>& factor, std::int64_t top, std::int64_t left) {
    const T* const from = factor.source + top * factor.columns + left;
    inside = 0;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int p = 0; p < parts; ++p) {
        const int column = p * width;
        const bool there = top + r < factor.rows && left + column < factor.columns;
        inside |= static_cast<unsigned>(there) << (r * parts + p);
        if (factor.vectors && factor.rows > 0) {
          vectors[r][p] = load_vector<width>(there ? from + r * factor.columns + column : factor.source);
        } else {
#pragma unroll
          for (int k = 0; k < width; ++k) {
            const bool own = there && left + column + k < factor.columns;
            vectors[r][p][k] = own ? from[r * factor.columns + column + k] : from_float<T>(0.0f);
          }
        }
      }
    }
  }
  __device__ float at(int row, int column) const {
    const bool there = inside >> (row * parts + column / width) & 1;
    return there ? to_float(vectors[row][column / width][column % width]) : 0.0f;
  }
};
template <int Rows, typename T>
__device__ void load_rows(const Float8Operand<T>& factor, std::int64_t top, std::int64_t left,
                          float (&values)[Rows][float8_run]) {
  LoadedRows<T, Rows> rows;
  rows.load(factor, top, left);
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int k = 0; k < float8_run; ++k) values[r][k] = rows.at(r, k);
  }
}

// Factors with a scale for each row of 128 or each square of 128 x 128 elements (float8_blocks.cu). All have one dtype.
void round_in_blocks(KernelContext& context, std::span<const Float8Factor> factors);

}  // namespace weft::cuda
