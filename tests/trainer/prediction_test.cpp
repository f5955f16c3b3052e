// Multi-token prediction in a run. Wherever the predictors stand, a run learns what one rank learns. Weights that they
// share with other stages stay alike to the bit (`faults` of a run, tiny_run.h). The model itself is the one that a run
// without them has.
#include <gtest/gtest.h>

#include <cmath>

#include "parallel/pipeline/check/check.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/data/token_windows.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/solved_timing.h"

namespace weft {
namespace {

// That of parity_test.cpp, for its reason.
constexpr double reordered_prediction = 1e-5;

std::vector<TinyLayout> prediction_layouts() {
  const std::string one = "d e d m", two = "d e m*2";
  return {
      {.name = "tp2", .layers = one, .degrees = {.tensor = 2}},
      {.name = "tp4", .layers = two, .degrees = {.tensor = 4}},
      {.name = "cp2", .layers = one, .degrees = {.context = 2}},
      {.name = "ep2_tp2", .layers = two, .degrees = {.data_shard = 2, .tensor = 2, .expert = 2}},
      {.name = "shard2_half_blocks", .layers = one, .degrees = {.data_shard = 2}, .wrap = "half_block"},
      {.name = "shard2_root", .layers = one, .degrees = {.data_shard = 2}, .wrap = "root"},
      {.name = "pp2", .layers = one, .degrees = {.pipeline = 2}},
      {.name = "pp2_by_itself", .layers = two, .degrees = {.pipeline = 2}, .stages = "Ede|mmL"},
      {.name = "pp2_beside_the_blocks", .layers = two, .degrees = {.pipeline = 2}, .stages = "Edemm|L"},
      {.name = "pp4_alone", .layers = two, .degrees = {.pipeline = 4}, .stages = "Ed|e|mm|L"},
      {.name = "pp4_tied", .layers = two, .degrees = {.pipeline = 4}, .tied = true, .stages = "Ed|e|mm|L"},
      {.name = "pp2_tied", .layers = one, .degrees = {.pipeline = 2, .data_shard = 2}, .tied = true},
      {.name = "interleaved_alone",
       .layers = two,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .schedule = "interleaved",
       .chunks = 2,
       .stages = "Ed|e|mm|L"},
      {.name = "zbv_on_both_ranks",
       .layers = two,
       .degrees = {.pipeline = 2},
       .schedule = "zbv",
       .chunks = 2,
       .stages = "Ed|e|mm|L"},
      {.name = "zbv_tied",
       .layers = one,
       .degrees = {.pipeline = 2},
       .schedule = "zbv",
       .chunks = 2,
       .tied = true,
       .stages = "Ed|e|dm|L"},
      {.name = "dualpipev",
       .layers = one,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .schedule = "dualpipev",
       .chunks = 2},
      {.name = "zb_h1_full",
       .layers = two,
       .degrees = {.pipeline = 2},
       .schedule = "zb_h1",
       .recompute = Recompute::full,
       .stages = "Ed|emmL"},
      {.name = "no_shard",
       .layers = one,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .strategy = ShardStrategy::no_shard},
      {.name = "in_shards",
       .layers = one,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .accumulate_sharded = true,
       .stages = "Ed|edmL"},
  };
}

LearnedRun expect_learned(const Config& config, const LearnedRun& one, double tolerance = reordered_prediction) {
  LearnedRun many = learn(config);
  EXPECT_TRUE(many.faults.empty()) << many.faults.front() << " and " << many.faults.size() - 1 << " more";
  const RunDifference apart = difference(many, one);
  EXPECT_LT(apart.loss, tolerance);
  EXPECT_LT(apart.gradient_norm, tolerance);
  EXPECT_LT(apart.weights, tolerance) << apart.worst_parameter;
  return many;
}

class PredictionParity : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(PredictionParity, EqualsOneRank) {
  const LearnedRun one = learn(config_of({.layers = GetParam().layers, .tied = GetParam().tied}));
  expect_learned(config_of(GetParam()), one);
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.05);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PredictionParity, ::testing::ValuesIn(prediction_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// Gradients of three copies that are reduced in 16 bits are summed before, and rounded once.
TEST(PredictionPrecision, InSixteenBitsLearnsWhatOneRankLearns) {
  PrecisionConfig narrow;
  narrow.reduction = DType::bfloat16;
  const std::string layers = "d e m";
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    const LearnedRun one = learn(config_of({.layers = layers, .precision = narrow, .tied = tied}));
    for (const char* schedule : {"1f1b", "zbv"}) {
      SCOPED_TRACE(schedule);
      const bool v = std::string(schedule) == "zbv";
      const LearnedRun many = learn(config_of({.layers = layers,
                                               .degrees = {.pipeline = v ? 2 : 4},
                                               .schedule = schedule,
                                               .precision = narrow,
                                               .chunks = v ? 2 : 1,
                                               .tied = tied,
                                               .stages = "Ed|e|m|L"}));
      EXPECT_TRUE(many.faults.empty()) << many.faults.front();
      EXPECT_LT(difference(many, one).loss, 0x1p-8);
    }
  }
}

// Without a coefficient predictors learn nothing and teach nothing: what the others learn is to the bit what they learn
// in a model without predictors.
TEST(Prediction, WithoutACoefficientLeavesTheModelAlone) {
  for (const TinyLayout& layout : {TinyLayout{.layers = "d e d e"},
                                   TinyLayout{.layers = "d e d e", .degrees = {.pipeline = 2}, .stages = "Ede|deL"},
                                   TinyLayout{.layers = "d e d e", .recompute = Recompute::full}}) {
    const LearnedRun without = learn(config_of(layout));
    TinyLayout predicting = layout;
    predicting.layers += " m*2";
    if (predicting.stages != "auto") predicting.stages = "Ede|demmL";
    Config config = config_of(predicting);
    config.model.mtp_loss_coef = 0.0;
    config.training.max_grad_norm = 0.0;
    config.model.moe.router_aux_loss_coef = config.model.moe.router_z_loss_coef = 0.0;
    Config plain = config_of(layout);
    plain.training.max_grad_norm = 0.0;
    plain.model.moe.router_aux_loss_coef = plain.model.moe.router_z_loss_coef = 0.0;
    const LearnedRun with = learn(config), alone = learn(plain);
    EXPECT_EQ(with.losses, alone.losses);
    for (const auto& [name, values] : alone.weights) EXPECT_EQ(with.weights.at(name), values) << name;
  }
}

TEST(Prediction, LearnsToPredict) {
  Config config = config_of({.layers = "d e m*2"});
  config.run.steps = 40;
  config.model.mtp_loss_coef = 1.0;
  config.optimizer.learning_rate = 1e-2;
  std::vector<std::vector<double>> losses;
  RunObserver observer;
  observer.after_step = [&](RankRun&, const StepMetrics& metrics) { losses.push_back(metrics.prediction_losses); };
  learn(config, observer);
  ASSERT_EQ(losses.size(), 40u);
  for (const std::size_t k : {0u, 1u}) {
    // At first as any of 259 ids, of which the last positions of a sequence of 8 have none.
    const double at_first = std::log(259.0) * (7.0 - static_cast<double>(k)) / 8.0;
    EXPECT_NEAR(losses.front().at(k), at_first, 0.25);
    EXPECT_LT(losses.back().at(k), losses.front().at(k) - 0.3);
  }
}

// --- plans ----------------------------------------------------------------------------------------------------------

const ProgramUnit& unit_of(const Program& program, std::string_view name) {
  const auto found = std::ranges::find(program.units, name, &ProgramUnit::name);
  if (found == program.units.end()) fail("no unit {}", name);
  return *found;
}

std::vector<std::string> ties_of(const Program& program, int rank) {
  std::vector<std::string> ties;
  for (const Action& action : program.ranks[static_cast<std::size_t>(rank)]) {
    if (action.op == Op::tie_gradient) ties.push_back(program.units[static_cast<std::size_t>(*action.unit)].name);
  }
  return ties;
}

using Names = std::vector<std::string>;

TEST(PredictionPlan, SharesTheVocabularyWithBothEnds) {
  const Config config = config_of({.layers = "d e m", .degrees = {.pipeline = 4}, .stages = "Ed|e|m|L"});
  const Program program = step_program(ResolvedRun(config), {});
  EXPECT_TRUE(find_violations(program).empty());
  EXPECT_EQ(ties_of(program, 0), Names{"embedding"});
  EXPECT_EQ(ties_of(program, 1), Names{});
  EXPECT_EQ(ties_of(program, 2), (Names{"blocks.2.embedding", "blocks.2.projection"}));
  EXPECT_EQ(ties_of(program, 3), Names{"head.projection"});
  EXPECT_EQ(unit_of(program, "head.projection").copies.size(), 2u);
  EXPECT_EQ(unit_of(program, "head").copies.size(), 0u);  // the norm alone
  Config tied = config;
  tied.model.tie_word_embeddings = true;
  const Program joint = step_program(ResolvedRun(tied), {});
  EXPECT_TRUE(find_violations(joint).empty());
  EXPECT_EQ(unit_of(joint, "embedding").copies.size(), 3u);
  EXPECT_EQ(ties_of(joint, 2), Names{"blocks.2.embedding"});
}

TEST(PredictionPlan, BesideTheHeadSharesItsUnit) {
  const Config config = config_of({.layers = "d e m", .degrees = {.pipeline = 2}, .stages = "Ed|emL"});
  const Program program = step_program(ResolvedRun(config), {});
  EXPECT_EQ(ties_of(program, 1), Names{"blocks.2.embedding"});
  EXPECT_TRUE(unit_of(program, "head").copies.empty());
  std::vector<std::string> names;
  for (const int segment : program.stages[1].segments) {
    names.push_back(program.segments[static_cast<std::size_t>(segment)].name);
  }
  EXPECT_EQ(names, (Names{"blocks.1.attention", "blocks.1.experts", "blocks.2.merge", "blocks.2.attention",
                          "blocks.2.experts", "blocks.2.predict", "head"}));
}

TEST(PredictionPlan, AnAutomaticLayoutPutsPredictorsBesideTheHead) {
  for (const int ranks : {1, 2, 3, 4}) {
    Config config = config_of({.layers = "d*6 m*2", .degrees = {.pipeline = ranks}});
    const std::vector<StageBlocks> layout = stage_layout(config);
    const std::string text = to_string(layout, config.model);
    EXPECT_TRUE(text.ends_with("mmL")) << text;
    EXPECT_EQ(layout.back().first + layout.back().count, 8);
    // The same stages when they are read.
    config.pipeline.layout = text;
    EXPECT_EQ(stage_layout(config), layout);
  }
}

TEST(PredictionPlan, ALayoutHasThePredictorsOfTheModel) {
  Config config = config_of({.layers = "d e m", .degrees = {.pipeline = 2}, .stages = "Ed|eL"});
  ASSERT_EQ(layout_faults(config).size(), 1u);
  EXPECT_NE(layout_faults(config)[0].find("0 predictors (m), but model.layers \"d e m\" has 1"), std::string::npos)
      << layout_faults(config)[0];
  config = config_of({.layers = "d e", .degrees = {.pipeline = 2}, .stages = "Ed|emL"});
  ASSERT_EQ(layout_faults(config).size(), 1u);
  EXPECT_TRUE(layout_faults(config)[0].starts_with("column 5: the layout has 1 predictors (m)"))
      << layout_faults(config)[0];
}

// --- text -----------------------------------------------------------------------------------------------------------

// Written down from the definition. Predictor k of position i reads the k-th id behind i and predicts the next. Its
// conditions are that the sequence has both, the loss counts, and they are of the document of i.
TEST(PredictionText, FollowsWithinSequencesAndDocuments) {
  constexpr std::int32_t none = -1;
  const std::vector<std::int32_t> window = {10, 11, 12, 13, 14, 15, 16};
  const auto written = [&](bool masked, const std::vector<std::int32_t>& begins,
                           const std::vector<std::uint8_t>& losses) {
    const TextParts parts{masked, 2};
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(parts.count()) * 6, 99);
    const SequenceText text = parts_of(numbers, parts);
    write_sequence(window, begins, losses, text);
    std::vector<std::vector<std::int32_t>> following;
    for (const auto& [tokens, targets] : text.following) {
      following.emplace_back(tokens.begin(), tokens.end());
      following.emplace_back(targets.begin(), targets.end());
    }
    return following;
  };
  using Rows = std::vector<std::vector<std::int32_t>>;
  EXPECT_EQ(
      written(false, {}, {}),
      (Rows{
          {11, 12, 13, 14, 15, 0}, {12, 13, 14, 15, 16, none}, {12, 13, 14, 15, 0, 0}, {13, 14, 15, 16, none, none}}));
  // A second document begins with 13.
  EXPECT_EQ(written(true, {0, 3}, {}), (Rows{{11, 12, 0, 14, 15, 0},
                                             {12, none, none, 15, 16, none},
                                             {12, 0, 0, 15, 0, 0},
                                             {none, none, none, 16, none, none}}));
  // 12 and 15 are not to be predicted, whoever would.
  EXPECT_EQ(written(false, {}, {1, 1, 0, 1, 1, 0, 1})[1], (std::vector<std::int32_t>{none, 13, 14, none, 16, none}));
}

}  // namespace
}  // namespace weft
