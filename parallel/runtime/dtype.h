// Element types of tensors. float64 exists for references and norms; int32 for token ids and counts; those of 8 bits
// for the factors of products.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/float8.h"
#include "parallel/runtime/multiversion.h"

namespace weft {

enum class DType : std::uint8_t { float32, bfloat16, float16, float64, int32, float8_e4m3, float8_e5m2 };
constexpr auto enum_names(DType) {
  return name_list("float32", "bfloat16", "float16", "float64", "int32", "float8_e4m3", "float8_e5m2");
}

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

// Storage of one IEEE binary16. Conversion rounds to nearest, ties to even, overflows to infinity and keeps subnormals;
// NaN stays NaN. In integers, because GCC 12 vectorises neither _Float16 nor branches: all cases are computed and one
// is chosen.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  explicit float16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    // The exponent is moved from bias 127 to 15; what rounds up from the largest finite number becomes infinity.
    const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // One half has a unit in the last place of 2^-24, the distance of subnormals: the addition rounds to it.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
    const std::uint32_t quiet = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    const std::uint32_t beyond = magnitude > 0x7f800000u ? quiet : 0x7c00u;
    const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
    bits = static_cast<std::uint16_t>((magnitude < (143u << 23) ? finite : beyond) | ((word >> 16) & 0x8000u));
  }
  explicit operator float() const {
    const std::uint32_t magnitude = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
    const auto subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude + (113u << 23)) - 0x1p-14f);
    const std::uint32_t finite = magnitude < (1u << 23) ? subnormal : magnitude + (112u << 23);
    return std::bit_cast<float>((magnitude < (31u << 23) ? finite : magnitude | 0x7f800000u) | sign);
  }
};

// Rounds `value` into an element. GCC does not vectorise a loop that assigns one of 16 bits as a whole.
WEFT_INLINE void assign(float& element, float value) {
  element = value;
}
WEFT_INLINE void assign(bfloat16& element, float value) {
  element.bits = bfloat16(value).bits;
}
WEFT_INLINE void assign(float16& element, float value) {
  element.bits = float16(value).bits;
}

constexpr std::int64_t size_of(DType dtype) {
  constexpr std::int64_t bytes[] = {4, 2, 2, 8, 4, 1, 1};
  return bytes[static_cast<std::size_t>(dtype)];
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::float32> {};
template <>
struct DTypeOf<bfloat16> : std::integral_constant<DType, DType::bfloat16> {};
template <>
struct DTypeOf<float16> : std::integral_constant<DType, DType::float16> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::float64> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::int32> {};
template <>
struct DTypeOf<e4m3> : std::integral_constant<DType, DType::float8_e4m3> {};
template <>
struct DTypeOf<e5m2> : std::integral_constant<DType, DType::float8_e5m2> {};
template <typename T>
constexpr DType dtype_of = DTypeOf<T>::value;

// The dtype in which products read their factors: that of the tensors, or 8 bits (layers/kernels/float8.h).
enum class ProductFormat : std::uint8_t { as_stored, float8, float8_blocks };
constexpr auto enum_names(ProductFormat) {
  return name_list("as stored", "float8", "float8_blocks");
}

}  // namespace weft
