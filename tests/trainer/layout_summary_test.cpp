// The table of a layout against sums over the model that know nothing of stages.
#include "trainer/layout/layout_summary.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/trainer/tiny_run.h"
#include "trainer/costs/step_flops.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"

namespace weft {
namespace {

Config config_with(const std::string& layout, int pipeline, int chunks = 1, const std::string& schedule = "1f1b") {
  Config config = tiny_config("d e*3 d e");
  config.parallelism = {};
  config.parallelism.pipeline = pipeline;
  config.pipeline.layout = layout;
  config.pipeline.chunks = chunks;
  config.pipeline.schedule = schedule;
  return config;
}

template <typename Summary, typename Field>
auto total(const std::vector<Summary>& all, Field LayoutDemands::*field) {
  Field sum = 0;
  for (const Summary& one : all) sum += one.*field;
  return sum;
}

TEST(LayoutSummary, StagesAddUpToTheModel) {
  const ParameterCount count = count_parameters(config_with("auto", 1).model);
  const auto whole = summarize_layout(config_with("auto", 1)).stages.at(0);
  for (const char* layout : {"auto", "Ede|e|ed|eL", "E|deee|de|L"}) {
    const Config config = config_with(layout, 4);
    const LayoutSummary summary = summarize_layout(config);
    EXPECT_EQ(total(summary.stages, &StageSummary::parameters), count.total) << layout;
    EXPECT_EQ(total(summary.stages, &StageSummary::active_parameters), count.active) << layout;
    EXPECT_EQ(total(summary.stages, &StageSummary::gradient_bytes), whole.gradient_bytes) << layout;
    // Forward is a third of a step's operations.
    const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
    EXPECT_DOUBLE_EQ(total(summary.stages, &StageSummary::forward_flops) * 3 * tokens, step_flops(config));
    EXPECT_DOUBLE_EQ(total(summary.stages, &StageSummary::load), 4.0);
    EXPECT_EQ(total(summary.ranks, &RankSummary::parameters), count.total);
    EXPECT_DOUBLE_EQ(total(summary.ranks, &RankSummary::load), 4.0);
    EXPECT_EQ(total(summary.stages, &StageSummary::parameter_bytes), whole.parameter_bytes);
    EXPECT_EQ(total(summary.stages, &StageSummary::optimizer_bytes), whole.optimizer_bytes);
  }
  // In float32 with the two moments of AdamW; units are padded.
  EXPECT_NEAR(static_cast<double>(whole.parameter_bytes), 4.0 * static_cast<double>(count.total), 1024);
  EXPECT_EQ(whole.optimizer_bytes, 2 * whole.parameter_bytes);
}

// The static memory of a rank is what the plan of a run predicts, sharded and with parts of heads and experts.
TEST(LayoutSummary, BytesAreThoseOfThePlan) {
  Config config = config_with("Edee|edeL", 2);
  config.parallelism = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 4};
  const Mesh mesh(config.parallelism);
  const LayoutSummary summary = summarize_layout(config);
  const ParameterCount count = count_parameters(config.model);
  EXPECT_EQ(total(summary.stages, &StageSummary::parameters), count.total);
  for (int stage = 0; stage < 2; ++stage) {
    const Coordinates at = mesh.coordinates(mesh.rank_at(stage, 0, 0, 0, 0));
    const BucketBytes bytes = static_bytes(plan_stages(config, mesh, at));
    const StageSummary& told = summary.stages[static_cast<std::size_t>(stage)];
    EXPECT_EQ(told.parameter_bytes, bytes[Bucket::sharded_parameters] + bytes[Bucket::replicated_parameters]);
    EXPECT_EQ(told.optimizer_bytes, bytes[Bucket::optimizer_state]);
    EXPECT_LT(told.parameter_bytes, 4 * told.parameters);
  }
}

TEST(LayoutSummary, PlacesStagesAsTheScheduleDoes) {
  const auto ranks_of = [](const LayoutSummary& summary) {
    std::vector<int> ranks;
    for (const StageSummary& stage : summary.stages) ranks.push_back(stage.rank);
    return ranks;
  };
  const LayoutSummary looped = summarize_layout(config_with("Ed|e|ee|deL", 2, 2, "interleaved"));
  EXPECT_EQ(ranks_of(looped), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(looped.ranks[0].stages, (std::vector<int>{0, 2}));
  const LayoutSummary v = summarize_layout(config_with("Ed|e|ee|deL", 2, 2, "zbv"));
  EXPECT_EQ(ranks_of(v), (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(v.placement, "v");
  EXPECT_EQ(v.ranks[0].stages, (std::vector<int>{0, 3}));
  EXPECT_EQ(v.stages[3].chunk, 1);
  EXPECT_EQ(v.stages[3].layers, "d e L");
  EXPECT_EQ(v.ranks[1].forward_flops, v.stages[1].forward_flops + v.stages[2].forward_flops);
  EXPECT_EQ(v.ranks[1].gradient_bytes, v.stages[1].gradient_bytes + v.stages[2].gradient_bytes);
  // The same stages, otherwise dealt.
  EXPECT_EQ(v.stage_imbalance(), looped.stage_imbalance());
  const double mean = total(v.ranks, &RankSummary::forward_flops) / 2;
  EXPECT_DOUBLE_EQ(v.rank_imbalance(), std::max(v.ranks[0].forward_flops, v.ranks[1].forward_flops) / mean);
  EXPECT_GT(looped.rank_imbalance(), 1.0);
  EXPECT_EQ(v.layout, "Ed|e|ee|deL");
}

}  // namespace
}  // namespace weft
