// The reports of routing: the auxiliary loss and the load of experts are those of the model and its text, not of the
// layout.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "parallel/runtime/staging.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/step_copy.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

std::vector<TinyLayout> expert_load_layouts() {
  const std::string mixed = "d e d e";
  return {
      {.name = "pp1", .layers = mixed},
      {.name = "pp2", .layers = mixed, .degrees = {.pipeline = 2}},
      {.name = "pp2_gpipe", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "gpipe"},
      {.name = "pp4", .layers = mixed, .degrees = {.pipeline = 4}},
      {.name = "pp4_gpipe", .layers = mixed, .degrees = {.pipeline = 4}, .schedule = "gpipe"},
      {.name = "tp2", .layers = mixed, .degrees = {.tensor = 2}},
      {.name = "tp4_ep4", .layers = mixed, .degrees = {.tensor = 4, .expert = 4}},
      {.name = "shard4", .layers = mixed, .degrees = {.data_shard = 4}},
      {.name = "shard4_ep4", .layers = mixed, .degrees = {.data_shard = 4, .expert = 4}},
      {.name = "replicate2_shard2_ep2",
       .layers = mixed,
       .degrees = {.data_replicate = 2, .data_shard = 2, .expert = 2}},
      {.name = "mesh8", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}},
  };
}

class ExpertLoad : public ::testing::TestWithParam<TinyLayout> {};

// The tolerance is that of layout parity (parity_test.cpp): the losses are sums over the same 128 tokens in another
// order. The load is a ratio of counts; no token is so close to a tie that another order of sums sends it elsewhere.
TEST_P(ExpertLoad, AuxiliaryLossIsTheSameUnderPipelining) {
  const KeptRun one = run_kept(config_of({.layers = GetParam().layers}));
  const KeptRun many = run_kept(config_of(GetParam()));
  ASSERT_EQ(many.steps.size(), one.steps.size());
  for (std::size_t s = 0; s < one.steps.size(); ++s) {
    const auto &right = one.steps[s].moe, &found = many.steps[s].moe;
    ASSERT_EQ(right.size(), 2u);
    ASSERT_EQ(found.size(), 2u);
    for (std::size_t b = 0; b < right.size(); ++b) {
      EXPECT_EQ(found[b].block, right[b].block);
      EXPECT_NEAR(found[b].auxiliary_loss, right[b].auxiliary_loss, 1e-5 * right[b].auxiliary_loss);
      EXPECT_NEAR(found[b].z_loss, right[b].z_loss, 1e-5 * right[b].z_loss);
      EXPECT_EQ(found[b].max_over_mean, right[b].max_over_mean) << "step " << s + 1 << ", block " << right[b].block;
    }
  }
}

// Equal scores would give a loss of exactly the coefficient (E / K * sum of (K / E) (1 / E) over experts), and no load
// is lighter. Near it, since the weights are small: the loss is a mean and not a sum over microbatches, ranks or
// blocks.
TEST_P(ExpertLoad, AuxiliaryLossIsAMean) {
  Config config = config_of(GetParam());
  config.run.steps = 1;
  const KeptRun result = run_kept(config);
  ASSERT_EQ(result.steps.front().moe.size(), 2u);
  for (const MoeMetrics& moe : result.steps.front().moe) {
    EXPECT_GT(moe.auxiliary_loss, 0.9 * config.model.moe.router_aux_loss_coef);
    EXPECT_LT(moe.auxiliary_loss, 1.5 * config.model.moe.router_aux_loss_coef);
  }
}

// Every token chooses K experts in every expert block, and each choice is counted on one rank, once.
TEST_P(ExpertLoad, CountsEveryChoiceOnce) {
  Config config = config_of(GetParam());
  config.run.steps = 2;
  const std::int64_t choices =
      config.training.global_batch_size * config.training.sequence_length * config.model.moe.num_experts_per_tok;
  std::mutex mutex;
  std::vector<std::int64_t> counted(config.model.blocks.size());  // by block, over ranks and steps
  StepCopy copy;
  copy.report = [&](Stream& stream, const StepReport& report) {
    const std::lock_guard lock(mutex);
    for (std::size_t b = 0; b < counted.size(); ++b) {
      for (const double tokens : read<double>(stream, report.expert_tokens(static_cast<int>(b)))) {
        counted[b] += std::llround(tokens);
      }
    }
  };
  learn_by_copy(config, copy);
  EXPECT_EQ(counted, (std::vector<std::int64_t>{0, 2 * choices, 0, 2 * choices}));
}

KeptRun run_balanced_globally(TinyLayout layout, std::int64_t microbatch) {
  layout.layers = "d e d e";
  layout.aux_loss = AuxiliaryLoss::global;
  Config config = config_of(layout);
  config.training.microbatch_size = microbatch;
  config.model.moe.router_aux_loss_coef = 0.5;
  config.run.steps = 4;
  return run_kept(config);
}

void expect_alike(const KeptRun& found, const KeptRun& right) {
  ASSERT_EQ(found.steps.size(), right.steps.size());
  for (std::size_t s = 0; s < right.steps.size(); ++s) {
    EXPECT_NEAR(found.steps[s].loss, right.steps[s].loss, 1e-5 * right.steps[s].loss) << "step " << s + 1;
    EXPECT_NEAR(found.steps[s].gradient_norm, right.steps[s].gradient_norm, 1e-4 * right.steps[s].gradient_norm);
    for (std::size_t b = 0; b < right.steps[s].moe.size(); ++b) {
      const double loss = right.steps[s].moe[b].auxiliary_loss;
      EXPECT_NEAR(found.steps[s].moe[b].auxiliary_loss, loss, 1e-5 * loss) << "step " << s + 1;
    }
  }
}

// Choices of all data ranks: dealt over them, a batch has the loss that it has as one microbatch on one rank.
TEST(GlobalBalance, OfOneMicrobatchARankIsThatOfOneRank) {
  const KeptRun one = run_balanced_globally({}, 16);
  for (const auto& [degrees, microbatch] :
       {std::pair(Degrees{.data_shard = 4}, 4), std::pair(Degrees{.data_shard = 4, .expert = 4}, 4),
        std::pair(Degrees{.data_replicate = 2, .data_shard = 2, .expert = 2}, 4),
        std::pair(Degrees{.data_shard = 2, .tensor = 2, .expert = 2}, 8), std::pair(Degrees{.context = 2}, 16),
        std::pair(Degrees{.pipeline = 2, .data_shard = 2, .context = 2, .tensor = 2}, 8)}) {
    SCOPED_TRACE(fmt::format("pipeline {} data {} context {} tensor {} expert {}", degrees.pipeline, degrees.data(),
                             degrees.context, degrees.tensor, degrees.expert));
    expect_alike(run_balanced_globally({.degrees = degrees}, microbatch), one);
  }
}

// Over several microbatches too, whatever comes between the forwards of two of them.
TEST(GlobalBalance, IsThatOfTheSameMicrobatchesUnderEverySchedule) {
  const KeptRun one = run_balanced_globally({.degrees = {.data_shard = 2}}, 1);
  for (const TinyLayout& layout :
       {TinyLayout{.degrees = {.pipeline = 2, .data_shard = 2}},
        TinyLayout{.degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}, .schedule = "gpipe"},
        TinyLayout{.degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zbv", .chunks = 2},
        TinyLayout{.degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "dualpipev", .chunks = 2},
        TinyLayout{.degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2}, .schedule = "interleaved", .chunks = 2}}) {
    SCOPED_TRACE(fmt::format("{} tensor {}", layout.schedule, layout.degrees.tensor));
    expect_alike(run_balanced_globally(layout, 1), one);
  }
}

// Experts dealt in turn have equal loads over the step, though a microbatch may have no choice for some of them. Every
// layout deals them to the same tokens: it has the losses and gradients of one rank.
Config dealt_in_turn(TinyLayout layout, std::int64_t microbatch) {
  layout.layers = "d e d e";
  Config config = config_of(layout);
  config.training.microbatch_size = microbatch;
  config.model.moe.force_balance = true;
  config.model.moe.num_experts = 48;  // an eighth of a step's choices
  config.model.moe.num_experts_per_tok = 3;
  config.run.steps = 3;
  return config;
}

TEST(ForcedBalance, IsThatOfOneRankInEveryLayout) {
  const LearnedRun one = learn(dealt_in_turn({}, 1));
  const auto expect_one = [&](const TinyLayout& layout, std::int64_t microbatch) {
    SCOPED_TRACE(layout.name);
    const LearnedRun many = learn(dealt_in_turn(layout, microbatch));
    const RunDifference apart = difference(many, one);
    EXPECT_LT(apart.loss, 1e-5);
    EXPECT_LT(apart.gradient_norm, 1e-4);
    EXPECT_LT(apart.weights, 1e-5) << apart.worst_parameter;
    for (const StepMetrics& step : many.result.steps) {
      for (const MoeMetrics& moe : step.moe) {
        EXPECT_EQ(moe.max_over_mean, 1.0) << "block " << moe.block;
        EXPECT_EQ(moe.unused, 0) << "block " << moe.block;
      }
    }
  };
  expect_one({.name = "pp1"}, 1);
  expect_one({.name = "microbatches_of_4"}, 4);
  expect_one({.name = "tp4_ep4", .degrees = {.tensor = 4, .expert = 4}}, 1);
  expect_one({.name = "shard2_tp4_ep8", .degrees = {.data_shard = 2, .tensor = 4, .expert = 8}}, 1);
  expect_one({.name = "replicate2_shard2_ep2", .degrees = {.data_replicate = 2, .data_shard = 2, .expert = 2}}, 2);
  expect_one({.name = "cp2", .degrees = {.context = 2}}, 2);
  expect_one({.name = "cp4_tp2", .degrees = {.context = 4, .tensor = 2, .expert = 8}}, 2);
  expect_one(
      {.name = "recompute", .degrees = {.pipeline = 2, .data_shard = 2, .context = 2}, .recompute = Recompute::full},
      2);
  expect_one({.name = "dualpipev",
              .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
              .schedule = "dualpipev",
              .chunks = 2},
             1);
  expect_one({.name = "two_nodes",
              .degrees = {.data_shard = 2,
                          .tensor = 2,
                          .expert = 4,
                          .expert_dispatch = ExpertDispatch::hierarchical,
                          .expert_nodes = 2}},
             2);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExpertLoad, ::testing::ValuesIn(expert_load_layouts()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
