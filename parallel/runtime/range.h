// Contiguous parts of n items, of equal or unequal length.
#pragma once

#include <cstdint>

namespace weft {

struct Range {
  std::int64_t begin = 0, count = 0;
  bool operator==(const Range&) const = default;
};

// Balanced split of n items over `parts`: the first n % parts parts hold one more. Parts may be empty.
constexpr Range balanced_part(std::int64_t n, std::int64_t parts, std::int64_t index) {
  const std::int64_t base = n / parts, extra = n % parts;
  return {index * base + (index < extra ? index : extra), base + (index < extra ? 1 : 0)};
}

}  // namespace weft
