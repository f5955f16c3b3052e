// optimizer.offload: the same run to the bit in any layout, the bytes that were planned in both memories, checkpoints
// that know nothing of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/trainer/config_sample.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_schema.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/state_layout.h"
#include "trainer/planning/run_plan.h"

namespace weft {
namespace {

const TinyLayout alone{.layers = "d e"};
const TinyLayout shards{.degrees = {.data_shard = 4}};
const TinyLayout hybrid{.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}};
const TinyLayout looped{.layers = "d e d e",
                        .degrees = {.pipeline = 2, .data_replicate = 2},
                        .schedule = "interleaved",
                        .strategy = ShardStrategy::no_shard,
                        .chunks = 2};

TEST(StateOffload, ChangesNoBit) {
  for (const TinyLayout& layout : {alone, shards, hybrid, looped}) {
    for (const DType state : {DType::float32, DType::bfloat16}) {
      Config config = config_of(layout);
      config.run.steps = 4;
      config.optimizer.state = state;
      const LearnedRun kept = learn(config);
      for (const double offload : {0.3, 1.0}) {
        config.state_offload = offload;
        const LearnedRun moved = learn(config);
        EXPECT_TRUE(moved.faults.empty()) << moved.faults.front();
        const RunDifference apart = difference(moved, kept);
        EXPECT_TRUE(apart.bitwise_equal) << offload << ": " << apart.weights << " in " << apart.worst_parameter;
      }
    }
  }
}

// Muon's momentum stays on the device, and so does what lion keeps; adamw's share of the same units moves.
TEST(StateOffload, MovesStatesOfAdamwAlone) {
  for (const UpdateRule rule : {UpdateRule::muon, UpdateRule::lion}) {
    Config config = config_of(hybrid);
    config.run.steps = 3;
    config.optimizer.rule = rule;
    config.optimizer.learning_rate = 1e-4;
    config.optimizer_by_group[UpdateGroup::vectors] = inherited_options(config.optimizer, UpdateGroup::vectors);
    config.optimizer_by_group[UpdateGroup::vectors].rule = UpdateRule::adamw;
    const LearnedRun kept = learn(config);
    config.state_offload = 1.0;
    const RunDifference apart = difference(learn(config), kept);
    EXPECT_TRUE(apart.bitwise_equal) << name_of(rule) << ": " << apart.weights << " in " << apart.worst_parameter;
    const Mesh mesh(config.parallelism);
    const ResolvedGroups groups = resolved_groups(config);
    std::int64_t moved = 0;
    for (const PlannedStage& stage : plan_stages(config, mesh, {})) {
      for (const PlannedUnit& unit : stage.units) {
        for (const ParameterSpec& parameter : unit.plan.parameters) {
          const bool on_host = unit.host_states.contains(parameter.name);
          EXPECT_EQ(on_host, groups[update_group_of(parameter)].rule == UpdateRule::adamw) << parameter.name;
          moved += on_host;
        }
      }
    }
    EXPECT_GT(moved, 0);
  }
}

// Of each stage at least the part that was asked for goes, and not one tensor more than it takes. No tensor that stays
// is larger than one that goes.
TEST(StateOffload, TakesTheLargestTensorsFirst) {
  for (const TinyLayout& layout : {alone, shards, hybrid, looped}) {
    Config config = config_of(layout);
    const Mesh mesh(config.parallelism);
    for (const double offload : {0.01, 0.25, 0.5, 0.9, 1.0}) {
      config.state_offload = offload;
      for (int pp = 0; pp < mesh.degrees().pipeline; ++pp) {
        for (const PlannedStage& stage : plan_stages(config, mesh, {.pp = pp})) {
          std::int64_t all = 0, moved = 0, smallest = std::numeric_limits<std::int64_t>::max(), largest = 0;
          for (const PlannedUnit& unit : stage.units) {
            for (const ParameterSpec& parameter : unit.plan.parameters) {
              all += parameter.size();
              if (unit.host_states.contains(parameter.name)) {
                moved += parameter.size();
                smallest = std::min(smallest, parameter.size());
              } else {
                largest = std::max(largest, parameter.size());
              }
            }
          }
          EXPECT_GE(smallest, largest);
          EXPECT_GE(static_cast<double>(moved), offload * static_cast<double>(all));
          EXPECT_LT(static_cast<double>(moved - smallest), offload * static_cast<double>(all));
        }
      }
    }
  }
}

// The ledgers hold what was planned. Together they hold at least what a run without offload holds, and the chunks.
TEST(StateOffload, HoldsThePlannedBytesInBothMemories) {
  for (const TinyLayout& layout : {alone, shards, hybrid, looped}) {
    Config config = config_of(layout);
    config.run.steps = 1;
    const Mesh mesh(config.parallelism);
    for (const double offload : {0.4, 1.0}) {
      config.state_offload = offload;
      RunObserver observer;
      observer.after_step = [&](RankRun& run, const StepMetrics&) {
        const HostBytes host = run.host_bytes();
        EXPECT_EQ(host.predicted, host.measured);
        const std::int64_t device = run.ledger().live()[Bucket::optimizer_state];
        EXPECT_EQ(device, run.predicted()[Bucket::optimizer_state]);
        EXPECT_EQ(device, static_bytes(run.stages().planned())[Bucket::optimizer_state]);
        std::int64_t own = 0, chunk = 0;
        for (std::size_t u = 0; u < run.stages().planned_units().size(); ++u) {
          chunk = std::max(chunk, run.stages().planned_units()[u]->host_chunk_bytes);
          for (const OwnedRows& rows : run.stages().owned_rows(u)) {
            own += 2 * rows.values.size() * size_of(DType::float32);
          }
        }
        EXPECT_GE(device + host.measured, own + 2 * chunk);
        if (offload < 1.0) return;
        EXPECT_EQ(device, 2 * chunk);
      };
      const TrainResult result = run_steps(config, observer);
      for (const HostBytes& rank : result.host) EXPECT_GT(rank.measured, 0);
      EXPECT_EQ(std::ssize(result.host), mesh.world());
    }
  }
}

// A run that saves with offload goes on without it under another layout, and the other way round.
TEST(StateOffload, LeavesNoTraceInACheckpoint) {
  for (const bool first : {false, true}) {
    const TemporaryFolder folder;
    Config config = saving_config(hybrid, folder / "whole", 4, 0);
    const LearnedRun whole = learn(config);
    config.checkpoint.directory = (folder / "ended").string();
    config.checkpoint.interval = 2;
    config.state_offload = first ? 1.0 : 0.0;
    std::int64_t asked = 0;
    run_steps(config, {}, {}, {}, {[&] { return ++asked == 2; }});
    config.state_offload = first ? 0.0 : 0.6;
    const LearnedRun rest = learn(config);
    ASSERT_EQ(rest.losses.size(), 2u);
    LearnedRun end = whole;
    end.losses.erase(end.losses.begin(), end.losses.begin() + 2);
    end.gradient_norms.erase(end.gradient_norms.begin(), end.gradient_norms.begin() + 2);
    const RunDifference apart = difference(rest, end);
    EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
  }
}

// STEP takes as long as the states need in one direction, at the rate given; the plan has the bytes.
TEST(StateOffload, IsInThePlan) {
  Config config = config_of(hybrid);
  config.hardware.name = "h100";
  config.hardware.host_bytes_per_second = 1e6;
  const Hardware hardware = hardware_of(config);
  const RunPlan kept = plan_run(config, hardware);
  config.state_offload = 1.0;
  const RunPlan moved = plan_run(config, hardware);
  EXPECT_EQ(kept.host.total(), 0);
  EXPECT_GT(moved.host[Bucket::optimizer_state], 0);
  const Mesh mesh(config.parallelism);
  const std::int64_t bytes = host_state_bytes(plan_stages(config, mesh, {}));
  EXPECT_NEAR(moved.time.seconds - kept.time.seconds, static_cast<double>(bytes) / 1e6, 1e-9);
  EXPECT_LT(moved.ranks.front().peak[Bucket::optimizer_state], kept.ranks.front().peak[Bucket::optimizer_state]);
}

// Copies to the host leave the adapters of a node alone.
TEST(StateOffload, CostsTheSameOverNodes) {
  Config config = config_of(shards);
  config.hardware.name = "h100";
  config.hardware.ranks_per_node = 2;
  config.hardware.host_bytes_per_second = 1e6;
  const double kept = plan_run(config, hardware_of(config)).time.seconds;
  config.state_offload = 1.0;
  const std::int64_t bytes = host_state_bytes(plan_stages(config, Mesh(config.parallelism), {}));
  EXPECT_NEAR(plan_run(config, hardware_of(config)).time.seconds - kept, static_cast<double>(bytes) / 1e6, 1e-9);
}

TEST(StateOffload, IsRefusedOutsideItsRange) {
  for (const std::string value : {"1.5", "-0.1"}) {
    const std::string message = config_sample::message(config_sample::complete(), {"optimizer.offload=" + value});
    EXPECT_NE(message.find("optimizer.offload: " + value + " is out of range: in [0, 1]"), std::string::npos)
        << message;
  }
  EXPECT_EQ(config_sample::message(config_sample::complete(), {"optimizer.offload=0.5"}), "accepted");
}

// On a command line that would move nothing it is refused, as every key that nothing reads.
TEST(StateOffload, IsReadWhereAdamwStepsSomething) {
  const auto schema = config_schema();
  const auto key = std::ranges::find(schema, "optimizer.offload", &ConfigKey::path);
  ASSERT_NE(key, schema.end());
  Config config = config_of(hybrid);
  for (const UpdateRule rule : all_values<UpdateRule>) {
    config.optimizer.rule = rule;
    config.optimizer_by_group.clear();
    // Beside muon, embedding and head are stepped by adamw.
    const bool steps_some = rule == UpdateRule::adamw || rule == UpdateRule::muon;
    EXPECT_EQ(missing_for(*key, config).has_value(), !steps_some) << name_of(rule);
    config.optimizer_by_group[UpdateGroup::vectors] = {.rule = UpdateRule::adamw};
    EXPECT_FALSE(missing_for(*key, config)) << name_of(rule);
  }
}

}  // namespace
}  // namespace weft
