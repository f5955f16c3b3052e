// Medians of samples. `values` is not empty.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

namespace weft {

// The value in the middle; of an even number the larger of two, or the mean of both.
inline double upper_median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

inline double median_of(std::vector<double> values) {
  const double upper = upper_median(values);
  if (values.size() % 2 == 1) return upper;
  std::ranges::sort(values);
  return (upper + values[values.size() / 2 - 1]) / 2.0;
}

}  // namespace weft
