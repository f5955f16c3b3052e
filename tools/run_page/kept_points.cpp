#include "tools/run_page/kept_points.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "parallel/runtime/error.h"

namespace weft {

std::vector<PointRange> equal_stretches(std::size_t count, std::size_t most) {
  const std::size_t stretches = std::min(count, most);
  std::vector<PointRange> ranges;
  for (std::size_t i = 0; i < stretches; ++i) ranges.push_back({i * count / stretches, (i + 1) * count / stretches});
  return ranges;
}

std::vector<std::size_t> kept_points(std::span<const double> values, std::size_t most) {
  require(most >= 5, "a curve keeps its ends, and the extremes and the gap of a stretch");
  std::vector<std::size_t> kept(values.size());
  std::iota(kept.begin(), kept.end(), std::size_t{0});
  if (values.size() <= most) return kept;
  kept = {0, values.size() - 1};
  const bool has_gaps = !std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
  for (const PointRange& range : equal_stretches(values.size(), (most - 2) / (has_gaps ? 3 : 2))) {
    std::optional<std::size_t> least, largest, gap;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      if (!std::isfinite(values[i])) {
        if (!gap) gap = i;
        continue;
      }
      if (!least || values[i] < values[*least]) least = i;
      if (!largest || values[i] > values[*largest]) largest = i;
    }
    for (const auto& index : {least, largest, gap}) {
      if (index) kept.push_back(*index);
    }
  }
  std::ranges::sort(kept);
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

}  // namespace weft
