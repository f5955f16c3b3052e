// Numbers, bytes, seconds and ranks as texts for people, and numbers out of texts that people write.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace weft {

constexpr double mebibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}
constexpr double gibibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

// The unit of bytes that are read beside each other: those of a table, or of a sentence.
struct ByteUnit {
  int power = 3;                          // of 1024, and of 1000
  std::string_view name() const;          // "GiB"
  std::string_view decimal_name() const;  // "GB"
  // In name() and in decimal_name(); of single bytes without digits behind the point.
  std::string number(double bytes, int digits) const;
  std::string decimal_number(double bytes, int digits) const;
  std::string text(double bytes) const;  // "6.07 MiB"
};
// GiB if `largest` has one, else the largest unit of which it has one.
ByteUnit byte_unit(double largest);

std::string ranks_text(std::span<const int> ranks);  // "rank 3", "ranks 1, 2"
std::string grouped_digits(std::int64_t number);     // "8,030,261,248"
std::string format_bytes(std::int64_t bytes);        // "1.50 GiB"
// "12.5 ms", or "3.5" for unit times.
std::string format_time(double seconds, bool unit_time);

// "12 GiB", "1.5 GB", "900": whole bytes, from 1 to below 2^62. Nothing for other texts.
std::optional<std::int64_t> parse_bytes(const std::string& text);

// The number that the whole text spells, as std::from_chars reads it: without space or "+". Nothing for other texts.
// `base`: of whole numbers only.
template <typename Number, std::same_as<int>... Base>
std::optional<Number> parsed_number(std::string_view text, Base... base) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base...);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace weft
