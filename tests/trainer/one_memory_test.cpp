// Whoever says what a rank holds says the same: the plan, the banner, the picture, the simulated layout and the table
// of stages. Dry runs equal the ledgers of runs to the byte (dry_run_test.cpp).
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>

#include "tests/trainer/tiny_layout.h"
#include "tests/trainer/tiny_run.h"
#include "tools/picture/picture.h"
#include "trainer/layout/layout_summary.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/run_plan.h"
#include "trainer/planning/step_forecast.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/step_costs.h"
#include "trainer/resolve/step_programs.h"
#include "trainer/run/start_check.h"

namespace weft {
namespace {

struct Said {
  std::int64_t even = 0;
  std::optional<std::int64_t> worst = {};
  bool operator==(const Said&) const = default;
};
void PrintTo(const Said& said, std::ostream* out) {
  *out << said.even << " bytes, at most " << said.worst.value_or(0);
}

void raise(Said& most, std::int64_t even, std::optional<std::int64_t> worst) {
  most.even = std::max(most.even, even);
  if (worst) most.worst = std::max(most.worst.value_or(0), *worst);
}

void expect_one_memory(const Config& config) {
  const ResolvedRun run(config);
  Said plan, layout;
  StepPrograms programs(run);
  for (const RankPlan& rank : plan_ranks(programs)) raise(plan, rank.peak.total(), rank.worst_bytes);
  for (const RoutedBytes& rank : layout_memory(run).peak) raise(layout, rank.even, rank.worst);
  EXPECT_EQ(layout, plan);
  const RoutedBytes banner = check_step(config).predicted;
  EXPECT_EQ((Said{banner.even, banner.worst}), plan);

  Program program = step_program(run, run.mesh().coordinates(0));
  const ProgramCosts costs = even_costs(program);
  for (const LaneChannels& channels : {LaneChannels::serial(), LaneChannels::own()}) {
    const ForecastStep simulated = simulate_run(run, program, costs, channels);
    const StepForecast forecast = forecast_of(run, simulated);
    EXPECT_EQ((Said{forecast.peak.total(), forecast.worst_peak_bytes}), plan);
    const Picture picture = picture_of(simulated.program, simulated.step, {.detail = Detail::compute_only});
    EXPECT_EQ(picture.peak_bytes(), plan.even);
    // Where lanes take turns the curve is the ledger's, to the byte.
    const bool serial = channels.channel == LaneChannels::serial().channel;
    if (serial) {
      EXPECT_EQ(picture.highest_bytes(), plan.even);
    }
    for (const PictureRank& rank : picture.ranks) {
      const DryRun& dry = simulated.ranks[static_cast<std::size_t>(rank.rank)];
      EXPECT_EQ(rank.memory.back().bytes.total(), dry.walk.actions.back().after.total());
      // Whatever moves, nothing is given back before it is there.
      for (const MemorySample& sample : rank.memory) {
        ASSERT_GE(sample.bytes[Bucket::activations], 0);
        ASSERT_GE(sample.bytes[Bucket::unsharded_parameters], 0);
        ASSERT_GE(sample.bytes[Bucket::unsharded_gradients], 0);
        ASSERT_GE(sample.bytes[Bucket::communication], 0);
        ASSERT_GT(sample.bytes[Bucket::sharded_parameters], 0);
      }
    }
  }
}

class ShippedConfig : public ::testing::TestWithParam<const char*> {};

TEST_P(ShippedConfig, HasOneMemory) {
  const auto file = std::filesystem::path(WEFT_SOURCE_DIR) / "configs" / fmt::format("{}.toml", GetParam());
  expect_one_memory(read_config(file).config);
}

INSTANTIATE_TEST_SUITE_P(OneMemory, ShippedConfig,
                         ::testing::Values("bench_cpu", "h100_dense_1_5b", "h100_dense_3b", "h100_moe_8x500m",
                                           "h200_dense_1_5b", "h200_dense_7b", "h200_moe_8x1b", "hybrid", "layouts",
                                           "layouts_h200", "moe_1024", "plan_1t_moe", "plan_7b_2_nodes", "plan_7b_long",
                                           "plan_bamba_9b", "plan_llama3_70b", "plan_llama3_8b", "quickstart",
                                           "strategies"),
                         [](const auto& instance) { return std::string(instance.param); });

Config routed_config(const std::string& schedule, int chunks = 1) {
  Config config = tiny_config("d e*3 d e");
  config.parallelism = {.pipeline = 2, .data_shard = 2, .expert = 2};
  config.pipeline.schedule = schedule;
  config.pipeline.chunks = chunks;
  return config;
}

TEST(OneMemory, HoldsWithSpreadExpertsAndEverySchedule) {
  for (const char* schedule : {"gpipe", "1f1b", "zb1p"}) expect_one_memory(routed_config(schedule));
  for (const char* schedule : {"interleaved", "zbv", "dualpipev"}) {
    SCOPED_TRACE(schedule);
    expect_one_memory(routed_config(schedule, 2));
  }
}

// Under muon ranks of a stage own different matrices, and the fullest need not be the first.
TEST(OneMemory, HoldsWhereRanksOfAStageDiffer) {
  int others = 0;
  for (const Degrees& degrees : {Degrees{.data_replicate = 2}, Degrees{.tensor = 2}, Degrees{.data_shard = 3},
                                 Degrees{.pipeline = 2, .data_shard = 3}}) {
    Config config = config_of({.layers = "d d d", .degrees = degrees, .residency = "reshard_after_use"});
    config.optimizer.rule = UpdateRule::muon;
    const ResolvedRun run(config);
    Said plan, layout, first;
    for (int rank = 0; rank < run.mesh().world(); ++rank) {
      const Coordinates at = run.mesh().coordinates(rank);
      const std::int64_t bytes = dry_peak(config, run.mesh(), step_program(run, at), rank).total();
      raise(plan, bytes, {});
      if (rank % run.mesh().degrees().stage_ranks() == 0) raise(first, bytes, {});
    }
    others += first != plan ? 1 : 0;
    EXPECT_EQ(check_step(config).predicted.even, plan.even);
    for (const RoutedBytes& rank : layout_memory(run).peak) raise(layout, rank.even, rank.worst);
    EXPECT_EQ(layout, plan);
    Program program = step_program(run, {});
    const ProgramCosts costs = even_costs(program);
    const StepForecast forecast = forecast_of(run, simulate_run(run, program, costs, LaneChannels::own()));
    EXPECT_EQ(forecast.peak.total(), plan.even);
  }
  EXPECT_GT(others, 0);
}

// The memory that lives all step is the sum of the stages' units. One microbatch more in flight takes what a stage's
// forwards leave of one, whatever is routed where.
TEST(OneMemory, OfStagesAddsUp) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    Config config = routed_config("gpipe");
    config.training.recompute = recompute;
    config.training.global_batch_size = 8;  // four microbatches
    Config more = config;
    more.training.global_batch_size = 10;  // five
    const ResolvedRun run(config), longer(more);
    const LayoutSummary summary = summarize_layout(run.config(), run.layout());
    const LayoutMemory memory = layout_memory(run), of_more = layout_memory(longer);
    for (const RankSummary& rank : summary.ranks) {
      const auto at = static_cast<std::size_t>(rank.rank);
      const BucketBytes& before = memory.before[at];
      EXPECT_EQ(rank.parameter_bytes, before[Bucket::sharded_parameters] + before[Bucket::replicated_parameters]);
      EXPECT_EQ(rank.gradient_bytes, before[Bucket::sharded_gradients]);
      EXPECT_EQ(rank.optimizer_bytes, before[Bucket::optimizer_state]);
      ASSERT_EQ(rank.stages.size(), 1u);
      const RoutedBytes& kept = memory.kept[static_cast<std::size_t>(rank.stages[0])];
      EXPECT_GT(kept.even, 0);
      EXPECT_EQ(kept.worst > kept.even, recompute != Recompute::full);  // checkpoints are as long as the microbatch
    }
    const Mesh& mesh = run.mesh();
    for (const Routing routing : {Routing::even, Routing::worst}) {
      const auto four = dry_runs(run.config(), mesh, step_program(run, mesh.coordinates(0)), {}, routing);
      const auto five = dry_runs(longer.config(), mesh, step_program(longer, mesh.coordinates(0)), {}, routing);
      for (std::size_t rank = 0; rank < four.size(); ++rank) {
        const auto most = [&](const DryRun& dry) {
          std::int64_t saved = 0;
          for (const LedgerAction& action : dry.walk.actions) {
            saved = std::max(saved, action.after[Bucket::activations] + action.after[Bucket::moe_routing]);
          }
          return saved;
        };
        const RoutedBytes& kept = memory.kept[rank];
        EXPECT_EQ(most(five[rank]) - most(four[rank]), routing == Routing::even ? kept.even : *kept.worst);
      }
    }
    EXPECT_EQ(of_more.kept[0].even, memory.kept[0].even);
  }
}

}  // namespace
}  // namespace weft
