// What a rank holds along time: the same things as along its list, if not at the same instants.
#include <gtest/gtest.h>

#include "parallel/pipeline/check.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/random_program.h"

namespace weft {
namespace {

MemorySample peak_of(const std::vector<MemorySample>& curve) {
  return *std::max_element(curve.begin(), curve.end(), [](const MemorySample& one, const MemorySample& other) {
    return one.bytes() < other.bytes();
  });
}

TEST(MemoryCurve, Explore) {
  int over = 0, total = 0, uniform_over = 0;
  for (int seed = 0; seed < 400; ++seed) {
    Dice dice(static_cast<std::uint64_t>(5000 + seed));
    const Program program = random_program(dice);
    const ProgramCosts costs = random_costs(dice, program, dice.between(1, 30));
    const Simulation simulation = simulate(program, costs);
    for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
      ++total;
      const auto bound = transient_peak(program, rank).bytes;
      const auto peak = peak_of(memory_curve(program, simulation, rank)).bytes();
      if (peak > bound) { ++over; if (over < 6) fmt::print("seed {} rank {}: {} > {}\n", seed, rank, peak, bound); }
    }
  }
  fmt::print("{} of {} over, {}\n", over, total, uniform_over);
}

// One action after the other, and collectives that take no time: the list is the time.
TEST(MemoryCurve, InSeriesItIsTheList) {
  for (int seed = 0; seed < 250; ++seed) {
    Dice dice(static_cast<std::uint64_t>(4000 + seed));
    const Program program = random_program(dice);
    const ProgramCosts costs = random_costs(dice, program, 0, 0);
    const Simulation simulation = simulate(program, costs, LaneChannels::serial());
    for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
      const TransientPeak listed = transient_peak(program, rank);
      const MemorySample peak = peak_of(memory_curve(program, simulation, rank));
      ASSERT_EQ(peak.bytes(), listed.bytes) << "seed " << seed << ", rank " << rank;
      EXPECT_EQ(peak.unsharded_parameters, listed.unsharded_parameters);
      EXPECT_EQ(peak.unsharded_gradients, listed.unsharded_gradients);
      EXPECT_EQ(peak.communication, listed.communication);
      EXPECT_EQ(peak.activations, listed.activations);
    }
  }
}

}  // namespace
}  // namespace weft
