// Medians of samples. `values` is not empty.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace weft {

// The value in the middle; of an even number the mean of both.
inline double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return values.size() % 2 == 1 ? *middle : (*std::max_element(values.begin(), middle) + *middle) / 2.0;
}

}  // namespace weft
