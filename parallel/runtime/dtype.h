// Element types of tensors. float64 exists for references and norms; int32 for token ids and counts; those of 8 bits
// for the factors of products.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/error.h"

// Kernels are compiled for AVX-512 and for the baseline x86-64-v3; the version is chosen when the program is loaded.
// The resolver of target_clones runs before ThreadSanitizer is set up and crashes there, so that build has the baseline
// only.
#if defined(__SANITIZE_THREAD__) || !defined(__GNUC__) || defined(__clang__)
#define WEFT_MULTIVERSION
#else
#define WEFT_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "default")))
#endif
// Helpers are inlined into each version; otherwise they would keep the instructions of the baseline.
#define WEFT_INLINE [[gnu::always_inline]] inline
// Marks a function for host and GPU. The host compiler reads nothing of it.
#if defined(__CUDACC__)
#define WEFT_ON_ANY_DEVICE __host__ __device__
#else
#define WEFT_ON_ANY_DEVICE
#endif

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

// Numbers of 8 bits, as the factors of matrix products have them: E4M3 and E5M2 of the Open Compute Project's "OCP
// 8-bit Floating Point Specification", revision 1.0.
//
// `exponent` and `mantissa`: bits of each. `largest`: the largest finite number. Conversion from float rounds to
// nearest, ties to even, keeps subnormals and saturates: infinities too become `largest`. NaN stays NaN. In integers
// and without branches, because GCC 12 vectorises only those.
template <int exponent, int mantissa>
struct Float8 {
  static constexpr int bias = (1 << (exponent - 1)) - 1;
  // E4M3 has no infinity, and only the last code of its last exponent is NaN. E5M2 is like IEEE's formats.
  static constexpr float largest = mantissa == 3 ? 448.0f : 57344.0f;

  std::uint8_t bits = 0;

  Float8() = default;
  WEFT_INLINE explicit Float8(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t whole = word & 0x7fffffffu;
    const std::uint32_t magnitude = std::min(whole, std::bit_cast<std::uint32_t>(largest));
    constexpr int dropped = 23 - mantissa;
    const std::uint32_t normal =
        (magnitude - (std::uint32_t{127 - bias} << 23) + ((1u << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1u)) >>
        dropped;
    // A unit in the last place of `unit` is the distance of subnormals: the addition rounds to it.
    constexpr float unit = std::bit_cast<float>(std::uint32_t{127 + 1 - bias + dropped} << 23);
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + unit) - std::bit_cast<std::uint32_t>(unit);
    const std::uint32_t finite = magnitude < (std::uint32_t{128 - bias} << 23) ? subnormal : normal;
    bits = static_cast<std::uint8_t>((whole > 0x7f800000u ? 0x7fu : finite) | ((word >> 24) & 0x80u));
  }
  WEFT_INLINE explicit operator float() const {
    const std::uint32_t magnitude = (bits & 0x7fu) << (23 - mantissa), sign = (bits & 0x80u) << 24;
    constexpr float smallest_normal = std::bit_cast<float>(std::uint32_t{128 - bias} << 23);
    const auto subnormal = std::bit_cast<std::uint32_t>(
        std::bit_cast<float>(magnitude + (std::uint32_t{128 - bias} << 23)) - smallest_normal);
    const std::uint32_t finite = magnitude < (1u << 23) ? subnormal : magnitude + (std::uint32_t{127 - bias} << 23);
    constexpr std::uint32_t beyond = mantissa == 3 ? 0x7fu : 0x7cu;  // the first code that is not finite
    return std::bit_cast<float>(((bits & 0x7fu) < beyond ? finite : magnitude | 0x7f800000u) | sign);
  }
};

using e4m3 = Float8<4, 3>;
using e5m2 = Float8<5, 2>;

// Rounds `value` into an element. GCC does not vectorise a loop that assigns one of 16 bits as a whole.
template <typename T>
WEFT_INLINE void assign(T& element, float value) {
  if constexpr (std::is_same_v<T, float>) {
    element = value;
  } else {
    element.bits = T(value).bits;
  }
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
