// Measurements of ranks come back summed, each number in its own place.
#include "trainer/rank/step_totals.h"

#include <gtest/gtest.h>

#include <random>

#include "parallel/comm/local.h"
#include "tests/parallel/cpu_rank.h"

namespace weft {
namespace {

constexpr int ranks = 3;
constexpr int blocks = 2, experts = 3;

// Numbers that are exact in double and differ from place to place, so that none can be taken for another.
double measured(int rank, int place, int step) {
  return 1 + rank + 10 * place + 1000 * step;
}
double summed(int place, int step) {
  return measured(0, place, step) + measured(1, place, step) + measured(2, place, step);
}

BucketBytes peak_of(int rank, int step) {
  BucketBytes bytes;
  for (std::size_t b = 0; b < bucket_count; ++b) {
    bytes.bytes[b] = (std::int64_t{1} << 40) + 100 * static_cast<std::int64_t>(b) + 10 * rank + step;
  }
  return bytes;
}

CommunicationCounters counted_by(int rank, int step) {
  CommunicationCounters counters;
  counters[{"tp", CollectiveOp::all_reduce}] = {rank + 1, 1000 * (rank + 1) + step};
  if (rank == 1) counters[{"world", CollectiveOp::barrier}] = {4, 0};
  if (rank == 2) counters[{"pp", CollectiveOp::send}] = {5, std::int64_t{1} << 45};
  return counters;
}

TEST(StepSums, SumEveryMeasurementOverRanksAndForgetTheLastStep) {
  run_local_ranks(ranks, [](Communicator& world) {
    CpuRank rank;
    const auto group = world.split(0, world.rank(), "world", rank.stream);
    StepSums sums(rank.stream, rank.ledger, blocks, experts, ranks);
    for (int step = 0; step < 2; ++step) {
      sums.begin_step();
      const StepReport report = sums.report();
      ASSERT_EQ(report.values().size(), StepReport::size(blocks, experts));
      const TensorView values = report.values();
      for (double value : values.as<double>()) ASSERT_EQ(value, 0.0);
      ASSERT_EQ(sums.gradient_square_sum().as<double>()[0], 0.0);

      // As kernels do: into the views.
      const auto add = [&](TensorView to, int place) { to.as<double>()[0] += measured(world.rank(), place, step); };
      add(report.loss(), 0);
      for (int b = 0; b < blocks; ++b) {
        add(report.auxiliary_loss(b), 1 + b);
        add(report.z_loss(b), 3 + b);
        for (int e = 0; e < experts; ++e) add(report.expert_tokens(b).rows_from(e, 1), 5 + experts * b + e);
        add(report.null_choices(b), 40 + b);
      }
      sums.gradient_square_sum().as<double>()[0] = 6.25 + step;
      // With an update, and without one as in a validation.
      const bool updates = step == 0;
      if (updates) {
        const ConstTensorView both = sums.sum_for_update(*group);
        ASSERT_EQ(both.size(), 2);
        EXPECT_EQ(both.as<double>()[0], ranks * (6.25 + step));
        EXPECT_EQ(both.as<double>()[1], summed(0, step));
      }

      const StepTotals totals = sums.total(
          *group, {counted_by(world.rank(), step), peak_of(world.rank(), step), 7 + world.rank(),
                   TextCounts{100 * (world.rank() + 1), 1000 * (world.rank() + 1)}, world.rank() == 1 ? 0.5 : 0.25});
      EXPECT_EQ(totals.next.targets, 100 + 200 + 300);
      EXPECT_EQ(totals.next.tokens, 1000 + 2000 + 3000);
      EXPECT_EQ(totals.loss_sum, summed(0, step));
      EXPECT_EQ(totals.gradient_square_sum, updates ? ranks * 6.25 : 7.25);
      EXPECT_EQ(totals.data_seconds, 0.5);
      EXPECT_EQ(totals.system_allocations, 7 + 8 + 9);
      ASSERT_EQ(totals.moe.size(), static_cast<std::size_t>(blocks));
      for (int b = 0; b < blocks; ++b) {
        const MoeTotals& moe = totals.moe[static_cast<std::size_t>(b)];
        EXPECT_EQ(moe.auxiliary_loss, summed(1 + b, step));
        EXPECT_EQ(moe.z_loss, summed(3 + b, step));
        EXPECT_EQ(static_cast<double>(moe.null_choices), summed(40 + b, step));
        ASSERT_EQ(moe.expert_tokens.size(), static_cast<std::size_t>(experts));
        for (int e = 0; e < experts; ++e) {
          EXPECT_EQ(static_cast<double>(moe.expert_tokens[static_cast<std::size_t>(e)]),
                    summed(5 + experts * b + e, step));
        }
      }
      CommunicationCounters communication;
      communication[{"tp", CollectiveOp::all_reduce}] = {6, 6000 + 3 * step};
      communication[{"world", CollectiveOp::barrier}] = {4, 0};
      communication[{"pp", CollectiveOp::send}] = {5, std::int64_t{1} << 45};
      EXPECT_EQ(totals.communication, communication);
      EXPECT_EQ(totals.at_peak, peak_of(ranks - 1, step));
    }
  });
}

// Of a rank in a step: more on another rank, as much with other buckets, or all as before.
BucketBytes drawn_peak(int rank, int step) {
  std::mt19937 random(static_cast<unsigned>(step / 2 * 100 + rank));
  BucketBytes bytes;
  for (std::int64_t& bucket : bytes.bytes) bucket = static_cast<std::int64_t>(random() % 3);
  return bytes;
}

TEST(StepSums, TellTheBucketsOfTheFullestRankInEveryStep) {
  constexpr int steps = 200, many = 5;
  run_local_ranks(many, [](Communicator& world) {
    CpuRank rank;
    const auto group = world.split(0, world.rank(), "world", rank.stream);
    StepSums sums(rank.stream, rank.ledger, blocks, 0, many);
    for (int step = 0; step < steps; ++step) {
      sums.begin_step();
      const BucketBytes own = drawn_peak(world.rank(), step);
      BucketBytes fullest = drawn_peak(0, step);
      for (int r = 1; r < many; ++r) {
        if (drawn_peak(r, step).total() > fullest.total()) fullest = drawn_peak(r, step);
      }
      ASSERT_EQ(sums.total(*group, {{}, own, 0}).at_peak, fullest) << "step " << step;
      const std::vector<BucketBytes> all = gather_buckets(*group, own);
      for (int r = 0; r < many; ++r) ASSERT_EQ(all.at(static_cast<std::size_t>(r)), drawn_peak(r, step));
    }
  });
}

// A world of 16,384 ranks sums what one of 8 does, and two numbers a rank.
TEST(StepSums, GrowByTwoNumbersARank) {
  const auto bytes_of = [](std::size_t world) {
    CpuRank rank;
    const StepSums sums(rank.stream, rank.ledger, blocks, experts, world);
    return rank.ledger.live()[Bucket::workspace];
  };
  EXPECT_EQ(bytes_of(16'384) - bytes_of(8), (16'384 - 8) * 2 * 8);
}

TEST(StepSums, OfADenseModelHaveNoExperts) {
  run_local_ranks(1, [](Communicator& world) {
    CpuRank rank;
    const auto group = world.split(0, 0, "world", rank.stream);
    StepSums sums(rank.stream, rank.ledger, blocks, 0, 1);
    sums.begin_step();
    sums.report().loss().as<double>()[0] = 2.5;
    const StepTotals totals = sums.total(*group, {counted_by(0, 0), peak_of(0, 0), 1});
    EXPECT_EQ(totals.loss_sum, 2.5);
    for (const MoeTotals& moe : totals.moe) EXPECT_TRUE(moe.expert_tokens.empty());
    EXPECT_EQ(totals.at_peak, peak_of(0, 0));
  });
}

// Counts have places for the groups of the mesh only.
TEST(StepSums, RefuseAGroupThatTheMeshDoesNotHave) {
  run_local_ranks(1, [](Communicator& world) {
    CpuRank rank;
    StepSums sums(rank.stream, rank.ledger, blocks, 0, 1);
    sums.begin_step();
    CommunicationCounters counters;
    counters[{"elsewhere", CollectiveOp::send}] = {1, 1};
    EXPECT_THROW(sums.total(world, {counters, peak_of(0, 0), 1}), Error);
  });
}

}  // namespace
}  // namespace weft
