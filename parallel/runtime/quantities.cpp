#include "parallel/runtime/quantities.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace weft {

std::string ranks_text(std::span<const int> ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string grouped_digits(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (std::size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, ",");
  return digits;
}

ByteUnit byte_unit(double largest) {
  ByteUnit unit{0};
  for (double size = std::abs(largest); size >= 1024.0 && unit.power < 3; size /= 1024.0) ++unit.power;
  return unit;
}

std::string_view ByteUnit::name() const {
  constexpr std::array<std::string_view, 4> names = {"B", "KiB", "MiB", "GiB"};
  return names[static_cast<std::size_t>(power)];
}

std::string_view ByteUnit::decimal_name() const {
  constexpr std::array<std::string_view, 4> names = {"B", "kB", "MB", "GB"};
  return names[static_cast<std::size_t>(power)];
}

std::string ByteUnit::number(double bytes, int digits) const {
  return fmt::format("{:.{}f}", bytes / std::pow(1024.0, power), power == 0 ? 0 : digits);
}

std::string ByteUnit::decimal_number(double bytes, int digits) const {
  return fmt::format("{:.{}f}", bytes / std::pow(1000.0, power), power == 0 ? 0 : digits);
}

std::string ByteUnit::text(double bytes) const {
  return fmt::format("{} {}", number(bytes, 2), name());
}

std::string format_bytes(std::int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  return byte_unit(size).text(size);
}

std::string format_time(double seconds, bool unit_time) {
  if (unit_time) return fmt::format("{:.4g}", seconds);
  const double size = std::abs(seconds);
  if (size == 0.0 || size >= 1.0) return fmt::format("{:.4g} s", seconds);
  if (size >= 1e-3) return fmt::format("{:.4g} ms", 1e3 * seconds);
  return fmt::format("{:.4g} us", 1e6 * seconds);
}

std::optional<std::int64_t> parse_bytes(const std::string& text) {
  constexpr std::pair<std::string_view, double> units[] = {
      {"", 1.0},   {"B", 1.0},  {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
      {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, bytes] : units) {
    const double product = value * bytes;
    if (unit == name && product >= 1.0 && product < 0x1p62) return static_cast<std::int64_t>(product);
  }
  return std::nullopt;
}

}  // namespace weft
