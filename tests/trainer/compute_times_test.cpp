// The time that ranks of a stage are compared by: from clocks turned by hand, and from a run with a slow rank.
#include "trainer/rank/compute_times.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/parallel/clocked_device.h"
#include "tests/trainer/diagnosed_run.h"

namespace weft {
namespace {

// Two microbatches of a block with experts; only its attention is the same on all ranks.
Program attention_and_experts() {
  Program program;
  static_cast<ProgramTables&>(program) = schedule_only_tables(1, 1);
  program.units = {{.name = "blocks.0.dense", .family = Family::dense},
                   {.name = "blocks.0.experts", .family = Family::experts}};
  program.segments = {{.name = "blocks.0.attention", .units = {0}}, {.name = "blocks.0.experts", .units = {1}}};
  program.microbatches = 2;
  program.ranks.resize(1);
  for (const Op op : {Op::forward, Op::backward}) {
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (int segment = 0; segment < 2; ++segment) {
        program.ranks[0].push_back({.op = op, .stage = 0, .microbatch = microbatch, .segment = segment});
      }
    }
  }
  return program;
}

// A step in which every action takes `seconds`.
void take_step(ComputeTimes& times, const Program& program, ClockedStream& stream,
               const std::function<double(const Action&)>& seconds) {
  times.begin_step();
  for (std::size_t i = 0; i < program.ranks[0].size(); ++i) {
    stream.time += 100.0;  // between actions
    times.begin(i);
    stream.time += seconds(program.ranks[0][i]);
    times.end(i);
  }
  times.end_step();
}

TEST(ComputeTimes, AreTheLeastOfEachKindFromTheThirdStepOn) {
  const Program program = attention_and_experts();
  ClockedDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream("compute");
  ComputeTimes times(program, program.ranks[0], *stream);
  // Experts are not compared: their time would hide that of attention.
  const auto of = [](double forward, double backward) {
    return [=](const Action& action) {
      return *action.segment == 1 ? 1000.0 : action.op == Op::forward ? forward : backward;
    };
  };
  take_step(times, program, clocked(*stream), of(0.5, 0.5));
  take_step(times, program, clocked(*stream), of(0.5, 0.5));
  EXPECT_EQ(times.seconds(), 0.0);
  EXPECT_EQ(clocked(*stream).recorded, 0);
  take_step(times, program, clocked(*stream), of(2.0, 5.0));
  EXPECT_EQ(times.seconds(), 2 * 2.0 + 2 * 5.0);
  EXPECT_EQ(clocked(*stream).recorded, 4);  // of one microbatch
  take_step(times, program, clocked(*stream), of(3.0, 4.0));
  EXPECT_EQ(times.seconds(), 2 * 2.0 + 2 * 4.0);
}

// Both microbatches are looked at, one in each step.
TEST(ComputeTimes, TakeMicrobatchesInTurn) {
  const Program program = attention_and_experts();
  ClockedDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream("compute");
  for (const int quick : {0, 1}) {
    ComputeTimes times(program, program.ranks[0], *stream);
    for (int step = 0; step < 4; ++step) {
      take_step(times, program, clocked(*stream),
                [&](const Action& action) { return action.microbatch == quick ? 1.0 : 3.0; });
    }
    EXPECT_EQ(times.seconds(), 2 * 1.0 + 2 * 1.0) << quick;
  }
}

TEST(ComputeTimes, CompareRanksOfAStageOnly) {
  const Mesh mesh({.pipeline = 2, .data_shard = 3});
  // The second stage computes ten times as long as the first.
  const std::vector<double> seconds = {1.0, 1.04, 1.5, 10.0, 10.0, 10.6};
  const std::vector<RankCompute> ranks = compare_ranks(mesh, seconds);
  ASSERT_EQ(ranks.size(), 6u);
  EXPECT_DOUBLE_EQ(ranks[2].over_peers, 1.5 / 1.02);
  EXPECT_DOUBLE_EQ(ranks[5].over_peers, 1.06);
  for (const std::size_t rank : {0, 1, 3, 4}) EXPECT_FALSE(ranks[rank].is_slow()) << rank;
  EXPECT_EQ(slow_ranks_text(ranks),
            "rank 2 computes 47 % longer than the others of its stage, rank 5 computes 6 % longer than the others of "
            "its stage");
  EXPECT_EQ(slow_ranks_text(compare_ranks(mesh, std::vector<double>{1.0, 1.0, 1.0, 10.0, 10.0, 10.5})), "");
  EXPECT_TRUE(compare_ranks(mesh, std::vector<double>(6, 0.0)).empty());
  EXPECT_TRUE(compare_ranks(Mesh({.pipeline = 2}), std::vector<double>{1.0, 2.0}).empty());
}

// A rank that computes five times as long. All walls are equal: the others wait for it.
TEST(ComputeTimes, FlagASlowRankInTheSummary) {
  const std::vector<std::pair<Overrides, int>> runs = {{{}, 2}, {pipelined_dense, 3}, {sharded_hybrid, 1}};
  for (const auto& [overrides, slow] : runs) {
    RunFaults faults;
    faults.slowness = [slow = slow](int rank) { return rank == slow ? 5.0 : 1.0; };
    const TemporaryFolder folder;
    leave_run(folder, overrides, faults);
    const auto summary = nlohmann::json::parse(read_file(folder / "summary.json"));
    ASSERT_EQ(summary.at("ranks").size(), 4u);
    for (const auto& rank : summary.at("ranks")) {
      const double over = rank.at("over_peers");
      EXPECT_EQ(rank.at("slow"), over > 1.05);
      const bool is_slow = rank.at("rank") == slow;
      // Other programs make any rank's time longer: the bounds are wide, and far from five times.
      EXPECT_GT(over, is_slow ? 2.5 : 0.0) << summary;
      EXPECT_LT(over, is_slow ? 10.0 : 2.5) << summary;
    }
  }
}

}  // namespace
}  // namespace weft
