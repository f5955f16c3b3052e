// Ranks, bytes and seconds as numbers and words for readers.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace weft {

constexpr double mebibytes(double bytes) {
  return bytes / (1 << 20);
}
constexpr double mebibytes(std::int64_t bytes) {
  return mebibytes(static_cast<double>(bytes));
}
constexpr double gibibytes(double bytes) {
  return bytes / (1 << 30);
}
constexpr double gibibytes(std::int64_t bytes) {
  return gibibytes(static_cast<double>(bytes));
}

std::string ranks_text(std::span<const int> ranks);  // "rank 3", "ranks 1, 2"
std::string grouped_digits(std::int64_t number);     // "8,030,261,248"
std::string format_bytes(std::int64_t bytes);        // "1.50 GiB"
// "12.5 ms", or "3.5" for unit times.
std::string format_time(double seconds, bool unit_time);

}  // namespace weft
