// Points that stand for a long curve.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace weft {

// Points of a curve on a page: more than the pixels of a wide screen need.
inline constexpr std::size_t most_points = 2000;

// The indices to draw of a curve, ascending. A curve of at most `most` values keeps all of them. Of a longer one the
// first and the last value are kept. So are the least and the largest value of each of (most - 2) / 2 stretches of
// equal length. Where some values are not finite, there are (most - 2) / 3 stretches. Each keeps the first of its own,
// so that the gap stays. A spike of one step therefore stays at its height. `most` is at least 5.
std::vector<std::size_t> kept_points(std::span<const double> values, std::size_t most = most_points);

// A stretch of indices: begin, and end behind the last.
struct PointRange {
  std::size_t begin = 0, end = 0;
};
// `count` indices as at most `most` stretches, whose lengths differ by at most one.
std::vector<PointRange> equal_stretches(std::size_t count, std::size_t most);

}  // namespace weft
