
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

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

// Both formats' largest numbers are 1.75 times a power of two: a magnitude with a greater mantissa takes the next
// scale.
template <typename F>
WEFT_INLINE float scale_of(std::uint32_t magnitude) {
  if (magnitude >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  constexpr std::uint32_t exponent_of_largest = (std::bit_cast<std::uint32_t>(F::largest) >> 23) - 127;
  const std::uint32_t exponent = (magnitude + 0x1fffffu) >> 23;
  return std::bit_cast<float>((std::max(exponent, exponent_of_largest + 27u) - exponent_of_largest) << 23);
}

// Rows and columns of the source that share a scale.
struct Block {
  std::int64_t rows, columns;
};
Block block_of(const Float8Factor& factor) {
  constexpr std::int64_t size = scaled_block_size;
  if (factor.each == ScaledBlock::all) return {factor.source.rows(), factor.source.columns()};
  if (factor.each == ScaledBlock::square) return {size, size};
  return factor.transpose == Transpose::yes ? Block{size, 1} : Block{1, size};
}

// The scale of the source's block (row, column), counted in blocks.
WEFT_INLINE float& scale_at(const Float8Factor& factor, std::int64_t row, std::int64_t column) {
  if (factor.transpose == Transpose::yes) std::swap(row, column);
  if (factor.each == ScaledBlock::row) std::swap(row, column);
  return factor.scales.as<float>()[static_cast<std::size_t>(row * factor.scales.columns() + column)];
}

// largest[c] = the bits of the largest magnitude of column c. They are ordered like the magnitudes; NaN is above
// infinity.
template <typename T>
WEFT_INLINE void largest_of_columns(const T* from, std::int64_t rows, std::int64_t columns, std::uint32_t* largest) {
  std::fill_n(largest, columns, 0u);
  for (std::int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) {
      largest[i] = std::max(largest[i], magnitude_bits(static_cast<float>(from[row * columns + i])));
    }
  }
}

template <typename T, typename F>
WEFT_INLINE void round_rows(const T* from, std::int64_t rows, std::int64_t columns, const float* inverse, F* to) {
  for (std::int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) {
      to[row * columns + i].bits = F(static_cast<float>(from[row * columns + i]) * inverse[i]).bits;
    }
  }
}

// In tiles, so that both sides stay in the cache.
template <typename T, typename F>
WEFT_INLINE void round_transposed(const T* from, std::int64_t rows, std::int64_t columns, const float* inverse, F* to,
                                  std::int64_t to_columns) {
  constexpr std::int64_t tile = 64;
  for (std::int64_t top = 0; top < rows; top += tile) {
    const std::int64_t bottom = std::min(top + tile, rows);
    for (std::int64_t column = 0; column < columns; ++column) {
#pragma omp simd
      for (std::int64_t row = top; row < bottom; ++row) {
        to[column * to_columns + row].bits = F(static_cast<float>(from[row * columns + column]) * inverse[column]).bits;
      }
    }
  }
}

// The rounded factor's elements that the source does not have. The blocks that hold nothing else have the least scale.
template <typename F>
WEFT_INLINE void clear_padding(const Float8Factor& factor, F* to) {
  const std::int64_t rows = factor.source.rows(), columns = factor.rounded.columns();
  if (factor.transpose == Transpose::no) {
    std::fill(to + rows * columns, to + factor.rounded.size(), F());
  } else {
    for (std::int64_t row = 0; row < factor.rounded.rows(); ++row) {
      std::fill(to + row * columns + rows, to + (row + 1) * columns, F());
    }
  }
}

// In bands of rows that share scales.
WEFT_MULTIVERSION void round_factor(const Float8Factor& factor, std::uint32_t* largest, float* inverse) {
  const ConstTensorView source = factor.source;
  const auto [block_rows, block_columns] = block_of(factor);
  with_element_type(
      source.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        with_float8_type(
            factor.rounded.dtype(), [&](auto narrow) __attribute__((always_inline)) {
              using F = decltype(narrow);
              F* to = factor.rounded.as<F>().data();
              for (float& scale : factor.scales.as<float>()) scale = scale_of<F>(0);
              for (std::int64_t top = 0; top < source.rows(); top += block_rows) {
                const std::int64_t rows = std::min(block_rows, source.rows() - top), columns = source.columns();
                const T* from = source.as<T>().data() + top * columns;
                largest_of_columns(from, rows, columns, largest);
                for (std::int64_t left = 0; left < columns; left += block_columns) {
                  const std::int64_t right = std::min(left + block_columns, columns);
                  const float scale = scale_of<F>(*std::max_element(largest + left, largest + right));
                  scale_at(factor, top / block_rows, left / block_columns) = scale;
                  std::fill(inverse + left, inverse + right, 1.0f / scale);
                }
                if (factor.transpose == Transpose::no) {
                  round_rows(from, rows, columns, inverse, to + top * columns);
                } else {
                  round_transposed(from, rows, columns, inverse, to + top, factor.rounded.columns());
                }
              }
              clear_padding(factor, to);
            });
      });
}

WEFT_MULTIVERSION void widen_all(ConstTensorView elements, const FactorScales& scales, bfloat16* to) {
  const float* scale = scales.values.as<float>().data();
  const std::int64_t columns = elements.columns(), across = scales.values.columns();
  const std::int64_t run = scales.each == ScaledBlock::all ? columns : scaled_block_size;
  with_float8_type(
      elements.dtype(), [&](auto narrow) __attribute__((always_inline)) {
        const auto* from = elements.as<decltype(narrow)>().data();
        for (std::int64_t row = 0; row < elements.rows(); ++row) {
          for (std::int64_t left = 0; left < columns; left += run) {
            const std::int64_t block = left / run, begin = row * columns + left;
            const std::int64_t end = begin + std::min(run, columns - left);
            const std::int64_t at = scales.each == ScaledBlock::all   ? 0
                                    : scales.each == ScaledBlock::row ? block * across + row
                                                                      : row / scaled_block_size * across + block;
            const float factor = scale[at];
#pragma omp simd
            for (std::int64_t i = begin; i < end; ++i) assign(to[i], static_cast<float>(from[i]) * factor);
          }
        }
      });
}

}  // namespace

void round_to_float8(KernelContext&, std::span<const Float8Factor> factors) {
  std::vector<std::uint32_t> largest;
  std::vector<float> inverse;
  for (const Float8Factor& factor : factors) {
    largest.resize(static_cast<std::size_t>(factor.source.columns()));
    inverse.resize(largest.size());
    round_factor(factor, largest.data(), inverse.data());
  }
}

ConstTensorView from_float8(ConstTensorView elements, const FactorScales& scales, std::vector<bfloat16>& storage) {
  storage.resize(static_cast<std::size_t>(elements.size()));
  widen_all(elements, scales, storage.data());
  return view_of(std::span<bfloat16>(storage), elements.rows(), elements.columns());
}

}  // namespace weft::cpu
