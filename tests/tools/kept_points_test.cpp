// The points of a long curve that a page keeps: its extremes, its ends and its gaps, in a bounded number of points.
#include "tools/run_page/reported_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace weft {
namespace {

bool keeps(const std::vector<std::size_t>& kept, std::size_t index) {
  return std::ranges::binary_search(kept, index);
}

TEST(KeptPoints, LeavesShortCurvesAlone) {
  for (const std::size_t count : {0u, 1u, 2u, 2000u}) {
    const std::vector<double> values(count, 1.0);
    const auto kept = kept_points(values);
    ASSERT_EQ(kept.size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(kept[i], i);
  }
}

TEST(KeptPoints, ASpikeOfOneStepStaysVisible) {
  std::vector<double> values(10'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 5.0 * std::exp(-static_cast<double>(i) / 3000.0);
  for (const std::size_t spike : {1u, 4321u, 9998u}) {
    auto with = values;
    with[spike] = 100.0;
    const auto kept = kept_points(with);
    EXPECT_LE(kept.size(), most_points);
    EXPECT_TRUE(keeps(kept, spike)) << spike;
    with[spike] = -100.0;
    EXPECT_TRUE(keeps(kept_points(with), spike)) << spike;
  }
}

// Every value lies between kept ones of its neighbourhood, so that the drawn band is that of all values.
TEST(KeptPoints, KeepTheBandOfNoise) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(3.0, 1.0);
  std::vector<double> values(12'345);
  for (double& value : values) value = noise(random);
  const auto kept = kept_points(values);
  EXPECT_LE(kept.size(), most_points);
  EXPECT_EQ(kept.front(), 0u);
  EXPECT_EQ(kept.back(), values.size() - 1);
  EXPECT_TRUE(std::ranges::is_sorted(kept, std::ranges::less_equal{}));
  // (2000 - 2) / 2 = 999 stretches of 12 or 13 values.
  for (std::size_t i = 0; i < values.size(); ++i) {
    double least = std::numeric_limits<double>::infinity(), largest = -least;
    for (const std::size_t index : kept) {
      if (index + 13 < i || index > i + 13) continue;
      least = std::min(least, values[index]);
      largest = std::max(largest, values[index]);
    }
    ASSERT_LE(least, values[i]) << i;
    ASSERT_GE(largest, values[i]) << i;
  }
}

TEST(KeptPoints, GapsStay) {
  const double gap = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> values(10'000, 2.0);
  values[5000] = gap;
  for (std::size_t i = 7000; i < 7100; ++i) values[i] = gap;
  const auto kept = kept_points(values);
  EXPECT_TRUE(keeps(kept, 5000));
  EXPECT_TRUE(std::ranges::any_of(kept, [](std::size_t i) { return i >= 7000 && i < 7100; }));
  EXPECT_LE(kept.size(), most_points);
}

TEST(KeptPoints, GapsEverywhereStayWithinTheBound) {
  std::vector<double> values(10'000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 5 == 2 ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(i * 7919 % 1000);
  }
  EXPECT_LE(kept_points(values).size(), most_points);
}

TEST(KeptPoints, StretchesCoverEachIndexOnce) {
  for (const std::size_t count : {1u, 7u, 240u, 241u, 10'000u}) {
    std::size_t next = 0;
    for (const PointRange& range : equal_stretches(count, 240)) {
      EXPECT_EQ(range.begin, next);
      EXPECT_GE(range.end - range.begin, count / 240);
      EXPECT_LE(range.end - range.begin, count / 240 + 1);
      next = range.end;
    }
    EXPECT_EQ(next, count);
  }
}

}  // namespace
}  // namespace weft
