// training.offload: the same run to the bit in any layout, less device memory, and the bytes that were planned in both
// memories.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/pipeline/accounts/accounts.h"
#include "tests/trainer/config_sample.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/saved_run.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/planning/run_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/solved_timing.h"
#include "trainer/resolve/step_costs.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

const TinyLayout alone{.layers = "d e d"};
const TinyLayout shards{.layers = "d d e d", .degrees = {.data_shard = 4}};
const TinyLayout hybrid{.layers = "d e d e d d", .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}};
const TinyLayout looped{.layers = "d e d e d e d e",
                        .degrees = {.pipeline = 2, .data_replicate = 2},
                        .schedule = "interleaved",
                        .chunks = 2};
const TinyLayout parted{
    .layers = "d e d e d e d d", .degrees = {.pipeline = 2, .context = 2}, .schedule = "zbv", .chunks = 2};
const TinyLayout paired{.layers = "d e d e d e d e",
                        .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                        .schedule = "dualpipev",
                        .chunks = 2};

Config offloading(const TinyLayout& layout, double part) {
  Config config = config_of(layout);
  config.run.steps = 2;
  config.training.offload = part;
  return config;
}

TEST(ActivationOffload, ChangesNoBit) {
  for (TinyLayout layout : {alone, shards, hybrid, looped, parted, paired}) {
    for (const Recompute recompute :
         {Recompute::none, Recompute::selective, Recompute::keep_dispatch, Recompute::full}) {
      layout.recompute = recompute;
      const LearnedRun kept = learn(offloading(layout, 0.0));
      for (const double part : {0.4, 1.0}) {
        const LearnedRun moved = learn(offloading(layout, part));
        EXPECT_TRUE(moved.faults.empty()) << moved.faults.front();
        const RunDifference apart = difference(moved, kept);
        EXPECT_TRUE(apart.bitwise_equal) << layout.schedule << ", " << name_of(recompute) << ", " << part << ": "
                                         << apart.weights << " in " << apart.worst_parameter;
      }
    }
  }
}

// The tensors of a segment hold the bytes that it declares. On every rank the host's blocks are those of the list's
// bytes, and the peak is that of the dry run.
TEST(ActivationOffload, HoldsThePlannedBytesInBothMemories) {
  for (TinyLayout layout : {alone, shards, hybrid, looped, parted, paired}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      layout.recompute = recompute;
      RunObserver observer;
      observer.after_step = [&](RankRun& run, const StepMetrics&) {
        const HostBytes host = run.host_bytes();
        EXPECT_EQ(host.predicted, host.measured);
        EXPECT_GT(host.measured, 0) << layout.schedule << ", " << name_of(recompute);
      };
      const TrainResult result = run_steps(offloading(layout, 1.0), observer);
      ASSERT_EQ(result.predicted.size(), result.measured.size());
      const bool routed = layout.degrees.expert > 1;  // bytes of routed rows are predicted as dealt evenly
      for (std::size_t rank = 0; rank < result.measured.size() && !routed; ++rank) {
        EXPECT_EQ(result.predicted[rank].total(), result.measured[rank].total()) << layout.schedule;
      }
    }
  }
}

// Of each stage the front: no segment that may leave stands before one that does, and no more leave than the part
// takes.
TEST(ActivationOffload, TakesTheLongestKeptFirst) {
  for (const TinyLayout& layout : {alone, shards, hybrid, looped}) {
    const Config whole = offloading(layout, 1.0);
    const Mesh mesh(whole.parallelism);
    const ProgramTables all = step_program(ResolvedRun(whole), {});
    for (const double part : {0.01, 0.5, 0.9}) {
      const ProgramTables some = step_program(ResolvedRun(offloading(layout, part)), {});
      for (const ProgramStage& stage : all.stages) {
        std::int64_t may = 0, go = 0, last = 0;
        bool over = false;
        for (const int segment : stage.segments) {
          const std::int64_t bytes = all.segments[static_cast<std::size_t>(segment)].offload_bytes;
          const std::int64_t chosen = some.segments[static_cast<std::size_t>(segment)].offload_bytes;
          may += bytes;
          go += chosen;
          if (chosen > 0) last = chosen;
          EXPECT_TRUE(chosen == bytes || chosen == 0);
          over = over || chosen < bytes;
          EXPECT_FALSE(over && chosen > 0);
        }
        EXPECT_GE(static_cast<double>(go), part * static_cast<double>(may));
        if (may > 0) {
          EXPECT_LT(static_cast<double>(go - last), part * static_cast<double>(may));
        }
      }
    }
  }
}

// A deep pipeline keeps the activations of several microbatches on its first rank, and needs fewer bytes without them.
TEST(ActivationOffload, FreesWhatTheFirstStagesKeep) {
  TinyLayout layout{.layers = "d*8", .degrees = {.pipeline = 4}};
  Config config = offloading(layout, 0.0);
  config.training.global_batch_size = 8 * config.training.microbatch_size;
  const auto peak = [&](double part) {
    config.training.offload = part;
    const ResolvedRun run(config);
    return dry_run(run.config(), run.mesh(), step_program(run, {}), 0);
  };
  const DryRun kept = peak(0.0), half = peak(0.5), moved = peak(1.0);
  EXPECT_LT(2 * moved.peak[Bucket::activations], kept.peak[Bucket::activations]);
  EXPECT_LT(moved.peak.total(), half.peak.total());
  EXPECT_LT(half.peak.total(), kept.peak.total());
  EXPECT_EQ(kept.host.total(), 0);
  EXPECT_GT(moved.host[Bucket::activations], half.host[Bucket::activations]);
}

// A solved step keeps a budget with the room that copies make: one that is too small without them.
TEST(ActivationOffload, MakesRoomForASolvedStep) {
  TinyLayout layout{.layers = "d*8", .degrees = {.pipeline = 2, .data_shard = 2}};
  Config config = offloading(layout, 1.0);
  config.training.global_batch_size = 16 * config.training.microbatch_size;
  config.shard.residency = {Residency::solved};
  for (auto& [family, policy] : config.shard_by_family) policy.residency = {Residency::solved};
  const auto smallest = [&](double part) {
    config.training.offload = part;
    config.memory_budget = 1;
    return solve_timing(config, Mesh(config.parallelism), stage_layout(config)).smallest_budget;
  };
  const std::int64_t kept = smallest(0.0), moved = smallest(1.0);
  ASSERT_LT(moved, kept);
  config.memory_budget = (kept + moved) / 2;
  const ResolvedRun run(config);
  EXPECT_TRUE(run.timing());
  EXPECT_LE(fullest_peak(run).total(), *config.memory_budget);
  const LearnedRun solved = learn(config);
  EXPECT_TRUE(solved.faults.empty());
  Config plain = offloading(layout, 0.0);
  plain.training.global_batch_size = config.training.global_batch_size;
  EXPECT_LT(difference(solved, learn(plain)).weights, 1e-5);
}

// An automatic layout knows which bytes leave: it takes a budget that the rest keeps.
TEST(ActivationOffload, MakesRoomForAnAutomaticLayout) {
  Config config = offloading({.layers = "d*8", .degrees = {.pipeline = 4}, .residency = "reshard_after_use"}, 1.0);
  config.training.global_batch_size = 16 * config.training.microbatch_size;
  const auto peak = [&] {
    const ResolvedRun run(config);
    return fullest_peak(run).total();
  };
  config.memory_budget = peak();
  EXPECT_LE(peak(), *config.memory_budget);
  const std::int64_t budget = *config.memory_budget;
  config.memory_budget.reset();
  config.training.offload = 0.0;
  EXPECT_GT(peak(), budget);
}

// A table of costs without copies does not make them free.
TEST(ActivationOffload, TakesTheTimeOfTheBusWhereATableHasNone) {
  Config config = offloading(hybrid, 1.0);
  config.hardware.name = "h100";
  const Hardware hardware = hardware_of(config);
  const Program program = step_program(ResolvedRun(config), {});
  ProgramCosts costs = even_costs(program);
  costs.segments.front().host_copy = 7.0;
  time_host_copies(program, hardware, costs);
  EXPECT_EQ(costs.segments.front().host_copy, 7.0);
  for (std::size_t i = 1; i < program.segments.size(); ++i) {
    EXPECT_EQ(costs.segments[i].host_copy,
              static_cast<double>(program.segments[i].offload_bytes) / hardware.host_bytes_per_second.value);
  }
}

// The rate of the bus decides the wait of compute; the bytes are in the plan.
TEST(ActivationOffload, IsInThePlan) {
  Config config = offloading(hybrid, 0.0);
  config.hardware.name = "h100";
  config.hardware.host_bytes_per_second = 1e12;
  const RunPlan kept = plan_run(config, hardware_of(config));
  config.training.offload = 1.0;
  const RunPlan fast = plan_run(config, hardware_of(config));
  config.hardware.host_bytes_per_second = 1e6;
  const RunPlan slow = plan_run(config, hardware_of(config));
  EXPECT_EQ(kept.host.total(), 0);
  EXPECT_GT(fast.host[Bucket::activations], 0);
  EXPECT_EQ(slow.host, fast.host);
  EXPECT_GT(slow.time.waits.host, 100 * fast.time.waits.host);
  EXPECT_GT(slow.time.seconds, fast.time.seconds);
  const std::int64_t bytes = host_activation_bytes(step_program(ResolvedRun(config), {}), 0);
  EXPECT_EQ(slow.ranks.front().host[Bucket::activations], bytes);
}

TEST(ActivationOffload, IsRefusedOutsideItsRange) {
  for (const std::string value : {"1.5", "-0.1", "nan"}) {
    const std::string message = config_sample::message(config_sample::complete(), {"training.offload=" + value});
    EXPECT_NE(message.find("training.offload"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace weft
