#include "layers/kernels/cpu/float8.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "layers/kernels/cpu/kernels.h"
#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

template <typename Body>
WEFT_INLINE void with_float8_type(DType dtype, Body&& body) {
  if (dtype == DType::float8_e4m3) return body(e4m3());
  body(e5m2());
}

WEFT_INLINE std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}

// The bits of magnitudes are ordered like the magnitudes; NaN is above infinity.
template <typename T>
WEFT_INLINE std::uint32_t largest_magnitude(const T* elements, std::int64_t count) {
  std::uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, magnitude_bits(static_cast<float>(elements[i])));
  }
  return largest;
}

// Both formats' largest numbers are 1.75 times a power of two: a magnitude with a greater mantissa takes the next
// scale.
template <typename F>
WEFT_INLINE float scale_of(std::uint32_t magnitude) {
  if (magnitude >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  constexpr std::uint32_t exponent_of_largest = (std::bit_cast<std::uint32_t>(F::largest) >> 23) - 127;
  const std::uint32_t exponent = (magnitude + 0x1fffffu) >> 23;
  return std::bit_cast<float>((std::max(exponent, exponent_of_largest + 27u) - exponent_of_largest) << 23);
}

template <typename T, typename F>
WEFT_INLINE void round_rows(const T* from, std::int64_t count, float inverse, F* to) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) to[i].bits = F(static_cast<float>(from[i]) * inverse).bits;
}

// In tiles, so that both sides stay in the cache.
template <typename T, typename F>
WEFT_INLINE void round_transposed(const T* from, std::int64_t rows, std::int64_t columns, float inverse, F* to,
                                  std::int64_t to_columns) {
  constexpr std::int64_t tile = 64;
  for (std::int64_t top = 0; top < rows; top += tile) {
    const std::int64_t bottom = std::min(top + tile, rows);
    for (std::int64_t column = 0; column < columns; ++column) {
#pragma omp simd
      for (std::int64_t row = top; row < bottom; ++row) {
        to[column * to_columns + row].bits = F(static_cast<float>(from[row * columns + column]) * inverse).bits;
      }
    }
  }
  for (std::int64_t column = 0; column < columns; ++column) {
    std::fill(to + column * to_columns + rows, to + (column + 1) * to_columns, F());
  }
}

WEFT_MULTIVERSION void round_factor(const Float8Factor& factor, float* scale) {
  const auto& [source, transpose, rounded] = factor;
  with_element_type(
      source.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        with_float8_type(
            rounded.dtype(), [&](auto narrow) __attribute__((always_inline)) {
              using F = decltype(narrow);
              const T* from = source.as<T>().data();
              F* to = rounded.as<F>().data();
              *scale = scale_of<F>(largest_magnitude(from, source.size()));
              const float inverse = 1.0f / *scale;
              if (transpose == Transpose::no) {
                round_rows(from, source.size(), inverse, to);
              } else {
                round_transposed(from, source.rows(), source.columns(), inverse, to, rounded.columns());
              }
            });
      });
}

void round_factors(KernelContext&, std::span<const Float8Factor> factors, TensorView scales) {
  float* scale = scales.as<float>().data();
  for (const Float8Factor& factor : factors) {
    round_factor(factor, scale);
    scale += float8_scale_columns;
  }
}

template <typename F>
WEFT_INLINE void widen(const F* from, std::int64_t count, float scale, bfloat16* to) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) assign(to[i], static_cast<float>(from[i]) * scale);
}

WEFT_MULTIVERSION void widen_all(ConstTensorView elements, float scale, bfloat16* to) {
  with_float8_type(
      elements.dtype(), [&](auto narrow) __attribute__((always_inline)) {
        widen(elements.as<decltype(narrow)>().data(), elements.size(), scale, to);
      });
}

}  // namespace

ConstTensorView from_float8(ConstTensorView elements, ConstTensorView scale, std::vector<bfloat16>& storage) {
  storage.resize(static_cast<std::size_t>(elements.size()));
  widen_all(elements, scale.as<float>()[0], storage.data());
  return view_of(std::span<bfloat16>(storage), elements.rows(), elements.columns());
}

const Float8Kernels float8_kernels = {round_factors};

}  // namespace weft::cpu
