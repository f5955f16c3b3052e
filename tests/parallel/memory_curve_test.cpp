// The bytes of a rank along time: the same things as along its list, if not at the same instants.
#include <gtest/gtest.h>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "tests/parallel/lane_channels.h"
#include "tests/parallel/memory_sample.h"
#include "tests/parallel/peak_at_any_times.h"
#include "tests/parallel/random_ledger.h"
#include "tests/parallel/random_program.h"
#include "tests/parallel/reduced_in_turn.h"

namespace weft {
namespace {

MemorySample peak_of(const std::vector<MemorySample>& curve) {
  return *std::max_element(curve.begin(), curve.end(), [](const MemorySample& one, const MemorySample& other) {
    return one.bytes.total() < other.bytes.total();
  });
}

// By hand: a gather of 10 seconds, a forward of 2, a backward of 1 + 2, a reduction of 20. The norm is the last that
// waits for the reduction's input.
TEST(MemoryCurve, ThingsComeWhenWorkBeginsAndGoWhenItEnds) {
  Program program{stage_tables(1, 1), 1, {}};
  program.segments[0].activation_bytes = 16;
  program.units[0].unsharded_bytes = 8;
  program.units[0].gradient_bytes = 4;
  program.units[0].reduce_part_bytes = 2;
  program.ranks = {{{.op = Op::unshard, .stage = 0, .unit = 0},
                    {.op = Op::forward, .stage = 0, .microbatch = 0, .segment = 0},
                    {.op = Op::backward, .stage = 0, .microbatch = 0, .segment = 0},
                    {.op = Op::reshard, .stage = 0, .unit = 0},
                    {.op = Op::reduce_gradient, .stage = 0, .unit = 0},
                    {.op = Op::gradient_norm}}};
  ProgramCosts costs = even_costs(program);
  costs.segments[0] = {2.0, 1.0, 2.0};
  costs.units[0] = {.gather = 10.0, .reduce = 20.0};
  const std::vector<MemorySample> expected = {sample(0, 0, 0, 0, 0),   sample(0, 8, 0, 0, 0),  sample(10, 8, 0, 0, 16),
                                              sample(12, 8, 4, 0, 16), sample(15, 8, 4, 0, 0), sample(15, 0, 4, 0, 0),
                                              sample(15, 0, 4, 2, 0),  sample(35, 0, 4, 0, 0), sample(35, 0, 0, 0, 0)};
  EXPECT_EQ(memory_curve(program, simulate(program, costs), 0), expected);
}

// A weight gradient takes 4 seconds, a reduction 20: they end at 24 and 44. Compute comes to the wait at 8, and what is
// reduced from then on is given back as it ends.
TEST(MemoryCurve, AWaitGivesBackTheInputsUpToItsReduction) {
  const auto curve_of = [](const Program& program) {
    ProgramCosts costs = even_costs(program);
    for (ComputeCost& cost : costs.segments) cost.backward_weight = 4.0;
    for (UnitCost& cost : costs.units) cost.reduce = 20.0;
    return memory_curve(program, simulate(program, costs), 0);
  };
  const auto gradients = [](const std::vector<MemorySample>& curve) {
    std::vector<std::pair<double, std::int64_t>> samples;
    for (const MemorySample& sample : curve)
      samples.emplace_back(sample.time, sample.bytes[Bucket::unsharded_gradients]);
    return samples;
  };
  using Samples = std::vector<std::pair<double, std::int64_t>>;
  EXPECT_EQ(gradients(curve_of(reduced_in_turn(std::nullopt))), (Samples{{0, 0}, {0, 100}, {4, 200}, {8, 350}}));
  EXPECT_EQ(gradients(curve_of(reduced_in_turn(2))), (Samples{{0, 0}, {0, 100}, {4, 200}, {24, 100}, {24, 250}}));
  EXPECT_EQ(gradients(curve_of(reduced_in_turn(1))),
            (Samples{{0, 0}, {0, 100}, {4, 200}, {24, 100}, {44, 0}, {44, 150}}));
  for (const auto waited_for : {std::optional<int>(), std::optional(2), std::optional(1)}) {
    const Program program = reduced_in_turn(waited_for);
    EXPECT_EQ(peak_at_any_times(program, 0), peak_of(curve_of(program)).bytes.total());
  }
}

// What waits for the weight gradient takes the place of activations when the input gradient ends.
TEST(MemoryCurve, AnInputGradientLeavesWhatTheWeightGradientReads) {
  Program program{stage_tables(1, 1), 1, {}};
  program.units[0].unsharded_bytes = 0;
  const auto activations = [&](std::int64_t pending, const std::vector<Op>& ops) {
    program.segments[0].activation_bytes = 10;
    program.segments[0].pending_bytes = pending;
    program.ranks = {{}};
    for (Op op : ops) program.ranks[0].push_back({.op = op, .stage = 0, .microbatch = 0, .segment = 0});
    const auto curve = memory_curve(program, simulate(program, even_costs(program)), 0);
    EXPECT_EQ(peak_at_any_times(program, 0), peak_of(curve).bytes.total());
    std::vector<std::pair<double, std::int64_t>> samples;
    for (const MemorySample& sample : curve) samples.emplace_back(sample.time, sample.bytes[Bucket::activations]);
    return samples;
  };
  using Samples = std::vector<std::pair<double, std::int64_t>>;
  constexpr Op f = Op::forward, i = Op::backward_input, w = Op::backward_weight, b = Op::backward;
  EXPECT_EQ(activations(7, {f, i, w}), (Samples{{0, 0}, {0, 10}, {2, 7}, {3, 0}}));
  EXPECT_EQ(activations(13, {f, i, w}), (Samples{{0, 0}, {0, 10}, {2, 13}, {3, 0}}));
  EXPECT_EQ(activations(13, {f, b}), (Samples{{0, 0}, {0, 10}, {3, 13}, {3, 0}}));
}

// Whatever things cost, no curve goes over the bound; and the bound is not idle: random costs reach it often.
TEST(MemoryCurve, NoTimingGoesOverTheBound) {
  int ranks = 0, reached = 0, over_the_list = 0;
  for (int seed = 0; seed < 300; ++seed) {
    Dice dice(static_cast<std::uint64_t>(5000 + seed));
    const Program program = random_program(dice);
    std::vector<std::int64_t> highest(program.ranks.size(), 0);
    for (int draw = 0; draw < 6; ++draw) {
      const ProgramCosts costs = random_costs(dice, program, dice.between(1, 100), 10);
      const auto channels = draw % 3 == 0 ? shared_collectives() : LaneChannels::own();
      const Simulation simulation = simulate(program, costs, channels);
      for (std::size_t rank = 0; rank < highest.size(); ++rank) {
        const std::int64_t peak = peak_of(memory_curve(program, simulation, static_cast<int>(rank))).bytes.total();
        ASSERT_LE(peak, peak_at_any_times(program, static_cast<int>(rank))) << "seed " << seed << ", rank " << rank;
        highest[rank] = std::max(highest[rank], peak);
      }
    }
    for (std::size_t rank = 0; rank < highest.size(); ++rank) {
      const std::int64_t listed = transient_peak(program, static_cast<int>(rank)).bytes;
      const std::int64_t bound = peak_at_any_times(program, static_cast<int>(rank));
      EXPECT_GE(bound, listed);
      ++ranks;
      if (highest[rank] == bound) ++reached;
      if (highest[rank] > listed) ++over_the_list;
    }
  }
  EXPECT_GT(4 * reached, ranks);
  EXPECT_GT(over_the_list, 0);
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
      const MemorySample peak = peak_of(memory_curve(program, simulation, rank, LaneChannels::serial()));
      ASSERT_EQ(peak.bytes.total(), listed.bytes) << "seed " << seed << ", rank " << rank;
      EXPECT_EQ(peak.bytes[Bucket::unsharded_parameters], listed.buckets[Bucket::unsharded_parameters]);
      EXPECT_EQ(peak.bytes[Bucket::unsharded_gradients], listed.buckets[Bucket::unsharded_gradients]);
      EXPECT_EQ(peak.bytes[Bucket::communication], listed.buckets[Bucket::communication]);
      EXPECT_EQ(peak.bytes[Bucket::activations], listed.buckets[Bucket::activations]);
    }
  }
}

// Where lanes take turns a ledger's walk is the curve: its largest sum, and what is there in the end. Where they do
// not, only what comes and goes with units moves against it.
TEST(MemoryCurve, OfALedgerHasItsPeakInSeries) {
  for (int seed = 0; seed < 200; ++seed) {
    Dice dice(static_cast<std::uint64_t>(7000 + seed));
    const Program program = random_program(dice);
    const ProgramCosts costs = random_costs(dice, program, dice.between(1, 100), 10);
    for (const LaneChannels& channels : {LaneChannels::serial(), LaneChannels::own()}) {
      const Simulation simulation = simulate(program, costs, channels);
      for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
        const LedgerWalk ledger = random_ledger(dice, program.ranks[static_cast<std::size_t>(rank)].size());
        const auto curve = memory_curve(program, simulation, rank, channels, &ledger);
        const BucketBytes& last = ledger.actions.empty() ? ledger.before : ledger.actions.back().after;
        EXPECT_EQ(curve.back().bytes, last) << seed;
        if (channels.channel == LaneChannels::serial().channel) {
          EXPECT_EQ(peak_of(curve).bytes.total(), ledger.peak_bytes()) << seed << ", rank " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
