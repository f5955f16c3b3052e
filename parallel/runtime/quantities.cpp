#include "parallel/runtime/quantities.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <string_view>

namespace weft {

std::string ranks_text(std::span<const int> ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string grouped_digits(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (std::size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, ",");
  return digits;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 4> units = {"B", "KiB", "MiB", "GiB"};
  double size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; std::abs(size) >= 1024.0 && unit + 1 < units.size(); ++unit) size /= 1024.0;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", size, units[unit]);
}

std::string format_time(double seconds, bool unit_time) {
  if (unit_time) return fmt::format("{:.4g}", seconds);
  const double size = std::abs(seconds);
  if (size == 0.0 || size >= 1.0) return fmt::format("{:.4g} s", seconds);
  if (size >= 1e-3) return fmt::format("{:.4g} ms", 1e3 * seconds);
  return fmt::format("{:.4g} us", 1e6 * seconds);
}

}  // namespace weft
