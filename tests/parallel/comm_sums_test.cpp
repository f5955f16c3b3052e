// In which order collectives add, and how often they round: the same for all that sum, on groups of 1 to 8 ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "parallel/comm/local.h"
#include "parallel/runtime/random.h"

namespace weft {
namespace {

const int comm_sums_group_sizes[] = {1, 2, 3, 4, 8};

std::vector<std::vector<float>> random_inputs(int size, std::int64_t n) {
  std::vector<std::vector<float>> inputs;
  for (int rank = 0; rank < size; ++rank) {
    const RandomStream stream(7, fmt::format("input of rank {}", rank));
    auto& values = inputs.emplace_back();
    for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(stream.normal(i)));
  }
  return inputs;
}

TEST(AllReduce, AddsInRankOrderOnEveryRankAndInEveryRun) {
  constexpr std::int64_t n = 9'001;
  for (int size : comm_sums_group_sizes) {
    const auto inputs = random_inputs(size, n);
    std::vector<float> expected = inputs[0];
    for (int rank = 1; rank < size; ++rank) {
      for (std::int64_t i = 0; i < n; ++i) expected[i] += inputs[rank][i];
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
      run_local_ranks(size, [&](Communicator& world) {
        auto data = inputs[world.rank()];
        world.all_reduce(view_of(std::span(data), n, 1));
        EXPECT_EQ(std::memcmp(data.data(), expected.data(), n * sizeof(float)), 0) << size << " ranks";
      });
    }
  }
}

TEST(ReduceScatter, AddsTheSameBitsAsAllReduce) {
  constexpr std::int64_t n = 8 * 3 * 701;
  for (int size : comm_sums_group_sizes) {
    const auto inputs = random_inputs(size, n);
    run_local_ranks(size, [&](Communicator& world) {
      auto whole = inputs[world.rank()], input = whole;
      std::vector<float> part(n / size);
      world.all_reduce(view_of(std::span(whole), n, 1));
      world.reduce_scatter(view_of(std::span(input), n, 1), view_of(std::span(part), n / size, 1));
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + world.rank() * part.size(), part.size() * sizeof(float)), 0);
    });
  }
}

// Unit roundoffs: u32 = 2^-24 for float32, u16 = 2^-8 for bfloat16 and 2^-11 for float16 (8 and 11 significant bits, to
// nearest). Adding p numbers in float32 errs by at most (p - 1) u32 sum|x|. One rounding to 16 bits errs by u16 |sum|,
// or by 2^-25 where the sum is subnormal in float16. The factor 1.01 covers the 1 + u16 on the first term and all
// higher orders. Rounding after every addition would err by up to (p - 1) u16 sum|x|, and on 5,000 elements of eight
// ranks is sure to leave this bound.
template <typename T>
void expect_rounded_once(double u16) {
  constexpr std::int64_t n = 5'000;
  for (int size : {2, 3, 4, 8}) {
    const auto values = random_inputs(size, n);
    run_local_ranks(size, [&](Communicator& world) {
      std::vector<T> data;
      for (float value : values[world.rank()]) data.emplace_back(value);
      std::vector<T> input(data), part(n / size);
      world.all_reduce(view_of(std::span(data), n, 1));
      const auto even = std::span(input).first(n / size * size);
      world.reduce_scatter(view_of(even, n / size * size, 1), view_of(std::span(part), n / size, 1));
      for (std::int64_t i = 0; i < n; ++i) {
        double sum = 0, magnitude = 0;
        for (int rank = 0; rank < size; ++rank) {
          const double x = static_cast<float>(T(values[rank][i]));
          sum += x;
          magnitude += std::fabs(x);
        }
        const double bound = 1.01 * (std::max(u16 * std::fabs(sum), 0x1p-25) + (size - 1) * 0x1p-24 * magnitude);
        ASSERT_LE(std::fabs(static_cast<float>(data[i]) - sum), bound) << size << " ranks, element " << i;
      }
      for (std::size_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(part[i].bits, data[world.rank() * part.size() + i].bits);
      }
    });
  }
}

TEST(AllReduce, RoundsSixteenBitsOnce) {
  expect_rounded_once<bfloat16>(0x1p-8);
  expect_rounded_once<float16>(0x1p-11);
}

}  // namespace
}  // namespace weft
