// Numbers of 8 bits, as the factors of matrix products have them: E4M3 and E5M2 of the Open Compute Project's "OCP
// 8-bit Floating Point Specification", revision 1.0.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "parallel/runtime/multiversion.h"

namespace weft {

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

}  // namespace weft
