// Element types of tensors. float64 exists for references and norms; int32 for token ids and counts.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "parallel/runtime/error.h"
#include "parallel/runtime/multiversion.h"

namespace weft {

enum class DType : std::uint8_t { float32, bfloat16, float64, int32 };

// Storage of one bfloat16: the upper half of a float32. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (word >> 16) | 0x40u;
    bits = static_cast<std::uint16_t>((word & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// Rounds `value` into an element. GCC does not vectorise a loop that assigns a bfloat16 as a whole.
WEFT_INLINE void assign(float& element, float value) {
  element = value;
}
WEFT_INLINE void assign(bfloat16& element, float value) {
  element.bits = bfloat16(value).bits;
}

constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return 4;
    case DType::bfloat16:
      return 2;
    case DType::float64:
      return 8;
    case DType::int32:
      return 4;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float64:
      return "float64";
    case DType::int32:
      return "int32";
  }
  return "unknown";
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::int32;
};
template <typename T>
constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace weft
