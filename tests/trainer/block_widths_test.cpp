// Blocks with widths of their own (model.layers "d:24 e:8"). They are the same model on every layout, and are counted
// and dealt by their widths. Where all blocks have one width, they are refused by name.
#include <gtest/gtest.h>

#include "tests/trainer/kept_run.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/costs/step_flops.h"
#include "trainer/huggingface/architecture.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/huggingface/upcycle.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/config_rules.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

const std::string several = "d:24 e:8 d e:16*2 e";

std::vector<TinyLayout> width_layouts() {
  return {
      {.name = "pp2_tp2_ep2", .layers = several, .degrees = {.pipeline = 2, .tensor = 2, .expert = 2}},
      {.name = "shard4_ep2_etp2", .layers = several, .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2}},
      {.name = "zbv_recomputed",
       .layers = several,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .schedule = "zbv",
       .chunks = 2,
       .recompute = Recompute::full},
      {.name = "pp3_uneven", .layers = several, .degrees = {.pipeline = 3}, .stages = "Ed|edee|eL"},
  };
}

class BlockWidths : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(BlockWidths, LearnTheSameInEveryLayout) {
  Config config = config_of(GetParam());
  config.run.steps = 3;
  Config one = config_of({.layers = several});
  one.run.steps = 3;
  const LearnedRun many = learn(config);
  EXPECT_TRUE(many.faults.empty()) << many.faults.front();
  const RunDifference apart = difference(many, learn(one));
  EXPECT_LT(apart.loss, 1e-5);
  EXPECT_LT(apart.weights, 1e-5) << apart.worst_parameter;

  const ResolvedRun resolved(config);
  for (int rank = 0; rank < resolved.mesh().world(); ++rank) {
    const Program program = step_program(resolved, resolved.mesh().coordinates(rank));
    const DryRun dry = dry_run(resolved.config(), resolved.mesh(), program, rank, Routing::worst);
    const std::int64_t measured = many.result.measured[static_cast<std::size_t>(rank)].total();
    EXPECT_LE(measured, dry.peak.total()) << "rank " << rank;
    if (!routing_decides(config)) {
      EXPECT_EQ(measured, dry.peak.total()) << "rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, BlockWidths, ::testing::ValuesIn(width_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// Three matrices of hidden 20 for each MLP or expert, of which there are four.
TEST(BlockWidths, AreCounted) {
  const ModelConfig own = config_of({.layers = several}).model, even = config_of({.layers = "d e d e*3"}).model;
  const std::int64_t dense = 24 - 28, experts = 4 * ((8 - 10) + 2 * (16 - 10));
  EXPECT_EQ(count_parameters(own).total - count_parameters(even).total, 3 * 20 * (dense + experts));
  // Two multiplications and additions a weight of the two experts that a token goes to.
  const double expected = 6.0 * 20.0 * (dense + experts / 2.0);
  EXPECT_NEAR(token_flops(own, 16).total() - token_flops(even, 16).total(), expected, 1e-6);
}

TEST(BlockWidths, AreWhatLayoutsAreDealtBy) {
  const Config config = config_of({.layers = several, .degrees = {.pipeline = 2}});
  const LayoutItems items = modelled_items(config);
  ASSERT_EQ(items.blocks.size(), 6u);
  EXPECT_EQ(items.blocks[3].cost, items.blocks[4].cost);
  for (const auto& [wide, narrow] : {std::pair(2, 0), {3, 5}, {5, 1}}) {
    const LayoutItem& more = items.blocks[static_cast<std::size_t>(wide)];
    const LayoutItem& less = items.blocks[static_cast<std::size_t>(narrow)];
    EXPECT_GT(more.cost, less.cost);
    EXPECT_GT(more.always_bytes, less.always_bytes);
  }
}

TEST(BlockWidths, AreWrittenAsTheyAreRead) {
  for (const char* pattern : {"d:24 e:8 d e:16*2 e", "e:8*2 m*2", "d e*3"}) {
    EXPECT_EQ(layers_text(parse_layers(pattern)), pattern);
  }
}

std::string faults_of(const Config& config) {
  std::string text;
  for (const ConfigRule& rule : config_rules()) {
    for (const std::string& fault : rule.check(config)) text += fault + "\n";
  }
  return text;
}

TEST(BlockWidths, SplitOverTheRanksThatShareThem) {
  Config config = config_of({.layers = "d:22 e:9", .degrees = {.tensor = 4, .expert_tensor = 2}});
  EXPECT_EQ(faults_of(config),
            "model.layers \"d:22 e:9\": width 22 does not split over parallelism.tensor 4: remainder 2\n"
            "model.layers \"d:22 e:9\": width 9 does not split over parallelism.expert_tensor 2: remainder 1\n");
  // What no block takes need not split.
  config = config_of({.layers = "d:24 e:8", .degrees = {.tensor = 4}});
  config.model.intermediate_size = 27;
  EXPECT_EQ(faults_of(config), "");
  config = config_of({.layers = "d:1 e", .wide = true});
  config.optimizer.rule = UpdateRule::muon;
  EXPECT_NE(faults_of(config).find("single row where model.layers \"d:1 e\": width is 1"), std::string::npos)
      << faults_of(config);
  config = config_of({.layers = "d:24 e", .precision = {.compute = ProductFormat::float8}, .wide = true});
  EXPECT_NE(faults_of(config).find("but model.layers \"d:24 e\": width 24 over 1 ranks is 24"), std::string::npos)
      << faults_of(config);
  // The model's own widths are not needed where no block takes them.
  config = config_of({.layers = "d:24 e:8"});
  config.model.intermediate_size = config.model.moe.moe_intermediate_size = 0;
  EXPECT_EQ(faults_of(config), "");
  config = config_of({.layers = "d:24 d"});
  config.model.intermediate_size = 0;
  EXPECT_NE(faults_of(config).find("model.intermediate_size is required"), std::string::npos);
}

TEST(BlockWidths, AreRefusedWhereAllBlocksHaveOne) {
  ModelConfig model = config_of({.layers = "e:8 e"}).model;
  const std::vector<std::string> reasons = reasons_against(Architecture::qwen3_moe, model);
  EXPECT_NE(std::ranges::find(reasons, "block 0 has width 8 of its own (model.layers): all of qwen3_moe have the same"),
            reasons.end());
  const auto message = [](const ModelConfig& dense, UpcycleOptions options) -> std::string {
    try {
      upcycled_model(dense, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  UpcycleOptions options{.experts = 4, .experts_per_token = 2};
  EXPECT_NE(message(config_of({.layers = "d:24 d"}).model, options).find("widths of their own"), std::string::npos);
  options.layers = parse_layers("d e:8");
  EXPECT_NE(message(config_of({.layers = "d d"}).model, options).find("widths of their own"), std::string::npos);
}

}  // namespace
}  // namespace weft
