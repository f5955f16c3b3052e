#include "trainer/data/token_type.h"

#include <fmt/ranges.h>

#include <bit>
#include <cstring>
#include <limits>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in files are copied, not swapped");

// Calls `use` with a value of the C++ type that stores a token.
template <typename Use>
auto with_stored_type(TokenType type, Use&& use) {
  switch (type) {
    case TokenType::uint8:
      return use(std::uint8_t{});
    case TokenType::int8:
      return use(std::int8_t{});
    case TokenType::int16:
      return use(std::int16_t{});
    case TokenType::uint16:
      return use(std::uint16_t{});
    case TokenType::int32:
      return use(std::int32_t{});
    case TokenType::uint32:
      return use(std::uint32_t{});
    case TokenType::int64:
      break;
  }
  return use(std::int64_t{});
}

template <typename Number>
void encode_numbers(TokenType type, std::span<const Number> numbers, std::vector<std::uint8_t>& to) {
  with_stored_type(type, [&]<typename Stored>(Stored stored) {
    const std::size_t at = to.size();
    to.resize(at + numbers.size() * sizeof(Stored));
    std::uint8_t* next = to.data() + at;
    bool fit = true;
    for (const Number number : numbers) {
      stored = static_cast<Stored>(number);
      fit &= static_cast<std::int64_t>(stored) == number;
      std::memcpy(next, &stored, sizeof(Stored));
      next += sizeof(Stored);
    }
    require(fit, "numbers fit the type that they are stored in");
  });
}

}  // namespace

std::int64_t bytes_of(TokenType type) {
  return with_stored_type(type, [](auto stored) { return static_cast<std::int64_t>(sizeof(stored)); });
}

std::int64_t largest_of(TokenType type) {
  return with_stored_type(
      type, [](auto stored) { return static_cast<std::int64_t>(std::numeric_limits<decltype(stored)>::max()); });
}

void decode(TokenType type, std::span<const std::uint8_t> bytes, std::span<std::int64_t> to) {
  with_stored_type(type, [&]<typename Stored>(Stored stored) {
    require(bytes.size() == to.size() * sizeof(Stored), "each number has its bytes");
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
      to[i] = static_cast<std::int64_t>(stored);
    }
  });
}

void encode(TokenType type, std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& to) {
  encode_numbers(type, numbers, to);
}

void encode(TokenType type, std::span<const std::int32_t> numbers, std::vector<std::uint8_t>& to) {
  encode_numbers(type, numbers, to);
}

}  // namespace weft
