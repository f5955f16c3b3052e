// The integer types in which files store tokens and positions: names, sizes, and little-endian bytes to numbers and
// back. Bytes need no alignment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/runtime/enum_names.h"

namespace weft {

enum class TokenType : std::uint8_t { uint8, int8, int16, uint16, int32, uint32, int64 };

// As NumPy spells them.
constexpr auto enum_names(TokenType) {
  return name_list("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64");
}

// Bytes of one number.
std::int64_t bytes_of(TokenType type);

// The numbers stored in `bytes`, which has exactly bytes_of(type) for each. A value of uint64 above 2^63 - 1 that is
// read as int64 is negative.
void decode(TokenType type, std::span<const std::uint8_t> bytes, std::span<std::int64_t> to);
// Appends the numbers. Requires that each fits the type.
void encode(TokenType type, std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& to);
void encode(TokenType type, std::span<const std::int32_t> numbers, std::vector<std::uint8_t>& to);
// The largest number that the type stores.
std::int64_t largest_of(TokenType type);

}  // namespace weft
