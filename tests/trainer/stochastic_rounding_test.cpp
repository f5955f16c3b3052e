#include "trainer/optimizer/element_update.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "tests/trainer/update_arrays.h"

namespace weft {
namespace {

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
float value_of(std::uint16_t bits) {
  bfloat16 value;
  value.bits = bits;
  return static_cast<float>(value);
}

// Over all random numbers the mean is exact: the sum of 2^16 roundings is 2^16 times the value. In double nothing of it
// is rounded (24 bits times 2^16).
TEST(StochasticRounding, IsExactInTheMean) {
  const RandomStream random(3, "values");
  for (std::uint64_t i = 0; i < 40; ++i) {
    const float value = static_cast<float>(random.normal(i) * std::pow(2.0, static_cast<double>(i) * 3 - 60));
    double sum = 0;
    for (std::uint32_t draw = 0; draw < 0x10000u; ++draw) sum += value_of(round_stochastically(bits_of(value), draw));
    EXPECT_EQ(sum, 0x1p16 * static_cast<double>(value)) << value;
  }
}

TEST(StochasticRounding, LeavesWhatBfloat16HasAndWhatIsNoNumber) {
  for (const std::uint32_t draw : {0u, 1u, 0x8000u, 0xffffu}) {
    for (const float value : {0.0f, -0.0f, 1.0f, -1.5f, 0x1p-133f, std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
      EXPECT_EQ(bits_of(value_of(round_stochastically(bits_of(value), draw))), bits_of(value));
    }
    // Quiet or signalling, with the payload in the bits that go.
    for (const std::uint32_t nan : {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xffffffffu, 0xff80ffffu}) {
      EXPECT_TRUE(std::isnan(value_of(round_stochastically(nan, draw)))) << std::hex << nan;
    }
  }
}

// The same with the bits that the update draws. A rounding is off by at most one step of bfloat16 with a variance of at
// most a quarter of its square. The mean of n is off by no more than 5 steps / (2 sqrt(n)), but for one case in a
// million.
TEST(StochasticRounding, IsUnbiasedWithTheBitsOfTheUpdate) {
  constexpr std::int64_t draws = 1 << 16;
  const RandomStream random(3, "values");
  for (std::uint64_t i = 0; i < 20; ++i) {
    const float value = static_cast<float>(1.0 + random.uniform(i));  // a step is 2^-7
    for (const RoundedArray array : {RoundedArray::parameters, RoundedArray::first_state, RoundedArray::second_state}) {
      double along_steps = 0, along_elements = 0;
      for (std::int64_t draw = 0; draw < draws; ++draw) {
        const auto rounded = [&](std::int64_t step, std::uint64_t element) {
          const std::uint64_t bits = rounding_bits(rounding_start(99, step), element);
          return value_of(round_stochastically(bits_of(value), bits_for(array, bits)));
        };
        along_steps += rounded(draw + 1, i);
        along_elements += rounded(7, static_cast<std::uint64_t>(draw));
      }
      const double bound = 5 * 0x1p-7 / (2 * std::sqrt(static_cast<double>(draws)));
      EXPECT_NEAR(along_steps / draws, value, bound);
      EXPECT_NEAR(along_elements / draws, value, bound);
    }
  }
}

// Neighbours of any kind share nothing. Of 4 x 1000 numbers of 64 bits none comes twice. Each bit is one in half of
// them (5 standard deviations of a binomial count).
TEST(StochasticRounding, DrawsOtherBitsForAnotherNameStepOrElement) {
  std::set<std::uint64_t> seen;
  std::array<int, 64> ones{};
  int count = 0;
  const auto draw = [&](std::uint64_t bits) {
    seen.insert(bits);
    ++count;
    for (int b = 0; b < 64; ++b) ones[static_cast<std::size_t>(b)] += static_cast<int>(bits >> b & 1);
  };
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    draw(rounding_bits(rounding_start(5, 1), i));
    draw(rounding_bits(rounding_start(5, static_cast<std::int64_t>(i) + 1), 0));
    draw(rounding_bits(rounding_start(1000 + i, 1), 0));
    draw(rounding_bits(rounding_start(1000 + i, static_cast<std::int64_t>(i)), i));
  }
  EXPECT_EQ(std::ssize(seen), count);
  for (const int of_bit : ones) EXPECT_NEAR(of_bit, count / 2.0, 5 * std::sqrt(count / 4.0));
}

// The arrays of one element round as if they knew nothing of each other. In 2^14 draws the bits of two of them agree in
// half of the cases (5 standard deviations).
TEST(StochasticRounding, GivesEachArrayBitsOfItsOwn) {
  constexpr int draws = 1 << 14;
  const RoundedArray arrays[] = {RoundedArray::parameters, RoundedArray::first_state, RoundedArray::second_state};
  for (const RoundedArray one : arrays) {
    for (const RoundedArray other : arrays) {
      if (one == other) continue;
      for (int bit = 0; bit < 16; ++bit) {
        int agree = 0;
        for (std::uint64_t i = 0; i < draws; ++i) {
          const std::uint64_t bits = rounding_bits(rounding_start(5, 1), i);
          agree += static_cast<int>(~(bits_for(one, bits) ^ bits_for(other, bits)) >> bit & 1u);
        }
        EXPECT_NEAR(agree, draws / 2, 5 * std::sqrt(draws / 4.0)) << bit;
      }
    }
  }
}

// An update of 1e-4 of the parameter is an eightieth of a step of bfloat16 at 1 (2^-7). Rounded to nearest it is lost,
// every time; rounded stochastically it adds up. A step's rounding has a variance of at most 2^-14 / 4. The mean of n
// elements after s steps is therefore within 5 sqrt(s / n) 2^-8 of the exact sum.
TEST(StochasticRounding, KeepsUpdatesTooSmallForAParameter) {
  constexpr std::size_t size = 4096;
  constexpr std::int64_t steps = 1000;
  constexpr double change = 1e-4;
  UpdateArrays<bfloat16, float> arrays(UpdateRule::sgd, 0.0, size);
  std::ranges::fill(arrays.parameters, bfloat16(1.0f));
  std::ranges::fill(arrays.gradients, -1.0f);
  CpuStepper stepper;
  bfloat16 nearest(1.0f);
  for (std::int64_t step = 1; step <= steps; ++step) {
    stepper.step({arrays.whole()}, {.rule = UpdateRule::sgd, .learning_rate = change, .step = step}, 1.0f);
    nearest = bfloat16(static_cast<float>(nearest) + static_cast<float>(change));
  }
  double mean = 0;
  for (const bfloat16 parameter : arrays.parameters) mean += static_cast<float>(parameter) / double{size};
  const double bound = 5 * std::sqrt(static_cast<double>(steps) / double{size}) * 0x1p-8;
  EXPECT_NEAR(mean, 1.0 + steps * change, bound);
  EXPECT_LT(bound, 0.1 * steps * change);  // the bound means something
  EXPECT_EQ(static_cast<float>(nearest), 1.0f);
}

// The same for moments. In float32 the second moment of a constant gradient comes to its square. In bfloat16 rounded to
// nearest it would stay where beta2 moves it by less than half a step.
TEST(StochasticRounding, LetsMomentsReachTheirTarget) {
  constexpr std::size_t size = 4096;
  constexpr std::int64_t steps = 3000;
  constexpr double beta2 = 0.999;
  UpdateArrays<float, bfloat16> arrays(UpdateRule::adamw, 0.0, size);
  std::ranges::fill(arrays.gradients, 1.2f);
  CpuStepper stepper;
  bfloat16 nearest(0.0f);
  for (std::int64_t step = 1; step <= steps; ++step) {
    stepper.step({arrays.whole()}, {.learning_rate = 1e-3, .beta2 = beta2, .step = step}, 1.0f);
    const float before = static_cast<float>(nearest);
    nearest = bfloat16(before + static_cast<float>(1 - beta2) * (1.44f - before));
  }
  double mean = 0;
  for (const bfloat16 moment : arrays.second) mean += static_cast<float>(moment) / double{size};
  const double expected = 1.44 * (1 - std::pow(beta2, static_cast<double>(steps)));
  // Roundings decay with beta2: their variances add up to at most (2^-14 / 4) / (1 - beta2^2) an element.
  const double bound = 5 * 0x1p-8 / std::sqrt((1 - beta2 * beta2) * double{size});
  EXPECT_NEAR(mean, expected, bound);
  EXPECT_LT(bound, 0.01);
  EXPECT_GT(std::abs(static_cast<float>(nearest) - expected), 0.3);
}

}  // namespace
}  // namespace weft
