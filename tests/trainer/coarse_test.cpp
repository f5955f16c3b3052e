// The formulas of coarse.h against sums done by hand. One model has 70e9 parameters on 8 GPUs of 80 GB, one 32 layers
// of 4,096. Each expected value is what the formula in words gives on paper, to the digits that are written.
#include "trainer/planning/coarse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace weft {
namespace {

constexpr double giga = 1e9;
constexpr double counted = 80 * 0x1p30;

Card card() {
  return card_of("a100-80gb", counted);
}

// Half a unit of the last digit written.
void expect_gigabytes(double bytes, double expected, double digit) {
  EXPECT_NEAR(bytes / giga, expected, 0.5 * digit + 1e-9);
}

TEST(Coarse, StateOfEveryRecipeAndStrategy) {
  struct Row {
    double bytes, full, zero2, zero1, replicated;  // GB a GPU; zero1 0: none
  };
  const Row rows[] = {{8, 70.0, 192.5, 315.0, 560.0},
                      {12, 105.0, 227.5, 350.0, 840.0},
                      {16, 140.0, 262.5, 385.0, 1120.0},
                      {18, 157.5, 280.0, 525.0, 1260.0},
                      {16, 140.0, 280.0, 0.0, 1120.0}};
  const auto recipes = state_recipes();
  ASSERT_EQ(recipes.size(), std::size(rows));
  for (std::size_t r = 0; r < recipes.size(); ++r) {
    const auto bytes = [&](CoarseStrategy strategy) { return state_bytes(recipes[r], strategy, 70e9, 8); };
    EXPECT_DOUBLE_EQ(recipes[r].bytes(), rows[r].bytes) << recipes[r].name;
    EXPECT_DOUBLE_EQ(*bytes(CoarseStrategy::full_shard) / giga, rows[r].full) << recipes[r].name;
    EXPECT_DOUBLE_EQ(*bytes(CoarseStrategy::zero2) / giga, rows[r].zero2) << recipes[r].name;
    EXPECT_DOUBLE_EQ(bytes(CoarseStrategy::zero1).value_or(0.0) / giga, rows[r].zero1) << recipes[r].name;
    EXPECT_DOUBLE_EQ(*bytes(CoarseStrategy::replicated) / giga, rows[r].replicated) << recipes[r].name;
  }
}

// Ten bytes a parameter, as the formula with multiplier 5 on 2 bytes has it: neither half the batch nor none helps.
TEST(Coarse, StateThatExceedsTheCardIsNotHelpedByTheBatch) {
  CoarseRequest request{.parameters = 70e9, .ranks = 8, .bytes_per_parameter = 10, .activations = 20e9, .buffers = 5e9};
  for (const auto& [activations, sum] : {std::pair(20e9, 112.5), std::pair(10e9, 102.5), std::pair(0.0, 92.5)}) {
    request.activations = activations;
    const CoarsePlan plan = coarse_plan(request, card());
    EXPECT_DOUBLE_EQ(plan.state / giga, 87.5);
    expect_gigabytes(plan.state * 1e9 / 0x1p30, 81.5, 0.1);  // in GiB
    EXPECT_DOUBLE_EQ(plan.sum / giga, sum);
    EXPECT_EQ(plan.fit, CoarseFit::exceeds);
    EXPECT_TRUE(plan.state_exceeds);
  }
}

TEST(Coarse, SmallestNumberOfGpus) {
  struct Row {
    double bytes;
    int any, with_headroom;
  };
  for (const Row& row : {Row{8, 11, 12}, Row{10, 13, 15}, Row{12, 16, 18}, Row{16, 21, 24}, Row{18, 23, 27}}) {
    CoarseRequest request{.bytes_per_parameter = row.bytes, .activations = 20e9, .buffers = 5e9};
    const CoarseRanks ranks = coarse_plan(request, card()).ranks;
    EXPECT_EQ(ranks.any, row.any) << row.bytes;
    EXPECT_EQ(ranks.with_headroom, row.with_headroom) << row.bytes;
    // It fits with so many and not with one less.
    request.ranks = row.any;
    EXPECT_EQ(coarse_plan(request, card()).fit, CoarseFit::fits) << row.bytes;
    request.ranks = row.any - 1;
    EXPECT_NE(coarse_plan(request, card()).fit, CoarseFit::fits) << row.bytes;
  }
  const auto at_24 = [](double bytes) {
    const CoarseRanks ranks =
        coarse_plan({.bytes_per_parameter = bytes, .activations = 20e9, .buffers = 5e9}, card()).ranks;
    EXPECT_EQ(ranks.eights, 24);
    return *ranks.bytes_at_eights;
  };
  expect_gigabytes(at_24(16), 71.7, 0.1);
  expect_gigabytes(at_24(18), 77.5, 0.1);
}

TEST(Coarse, ACardHasTwoReadingsAndBothAreTold) {
  EXPECT_DOUBLE_EQ(card().nominal, 80e9);
  expect_gigabytes(card().counted, 85.9, 0.1);
  // Between the two: 82 GB.
  const CoarseRequest request{.parameters = 1e9, .ranks = 1, .bytes_per_parameter = 62, .activations = 20e9};
  EXPECT_EQ(coarse_plan(request, card()).fit, CoarseFit::only_as_counted);
  // 1,120 / (85.9 - 25) = 18.4.
  EXPECT_EQ(coarse_plan({.activations = 20e9, .buffers = 5e9}, card()).ranks.any_as_counted, 19);
}

TEST(Coarse, NoNumberOfGpusWhereTheRestExceeds) {
  const CoarsePlan plan = coarse_plan({.activations = 90e9}, card());
  EXPECT_EQ(plan.ranks.any, std::nullopt);
  EXPECT_EQ(plan.ranks.eights, std::nullopt);
}

TEST(Coarse, PeakElements) {
  const PeakElements told = peak_elements(70e9, 8, 3e9);
  EXPECT_DOUBLE_EQ(told.one_layer / giga, 11.75);
  EXPECT_DOUBLE_EQ(told.in_place / giga, 11.375);
  EXPECT_DOUBLE_EQ(told.prefetched / giga, 14.75);
  const PeakElements real = peak_elements(70e9, 8, 855'654'400);  // a block of Llama 2 70B
  expect_gigabytes(real.one_layer, 9.61, 0.01);
  expect_gigabytes(real.prefetched, 10.46, 0.01);
}

// Largest number of sequences whose activations fit into `bytes`, at `per_sequence` bytes each.
int most_sequences(double bytes, double per_sequence) {
  return static_cast<int>(std::floor(bytes / per_sequence));
}

TEST(Coarse, Activations) {
  CoarseModel model{.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 32000, .sequence = 2048, .batch = 32};
  const CoarseActivations batch = coarse_activations(model);
  expect_gigabytes(batch.all, 292.1, 0.1);
  expect_gigabytes(batch.unfused, 979.3, 0.1);
  expect_gigabytes(batch.inputs, 17.18, 0.01);
  expect_gigabytes(batch.inputs_and_live, 26.31, 0.01);
  model.batch = 1;
  const CoarseActivations one = coarse_activations(model);
  expect_gigabytes(one.all, 9.13, 0.01);
  expect_gigabytes(one.inputs, 0.537, 0.001);
  expect_gigabytes(one.inputs_and_live, 0.822, 0.001);
  const CoarseActivations large = coarse_activations(
      {.layers = 80, .hidden = 8192, .heads = 64, .vocabulary = 32000, .sequence = 2048, .batch = 16});
  expect_gigabytes(large.all, 730, 1);
  expect_gigabytes(large.inputs, 42.95, 0.01);
  expect_gigabytes(large.inputs_and_live, 52.1, 0.1);

  // 72 GB usable, state 13.48, window 1.33.
  const double room = (72 - 13.48 - 1.33) * giga;
  EXPECT_EQ(most_sequences(room, one.all), 6);
  EXPECT_EQ(most_sequences(room, one.inputs_and_live), 69);
  EXPECT_EQ(most_sequences(room, one.all + one.logits), 6);
  EXPECT_EQ(most_sequences(room, one.inputs_and_live + one.logits), 47);
  EXPECT_NEAR(one.all / one.inputs_and_live, 11.1, 0.05);
  EXPECT_NEAR((one.all + one.logits) / (one.inputs_and_live + one.logits), 7.8, 0.05);
}

// Parameters 14 GB, optimizer 56 GB, 2 GB a sequence of 4,096 tokens. A microbatch of 4 sequences of 8,192, dp 8, tp 2:
// (14 + 56) / 8 + 4 x 2 x 2 / 2 + 1.5, and without the division. Gradients of 7e9 parameters are 14 GB, or an eighth.
TEST(Coarse, SumsOfSamples) {
  const CoarseBudget budget{.parameters = 14e9, .optimizer = 56e9, .unit = 2e9, .batch = 4, .sequence = 8192};
  const CoarseDegrees degrees{.data = 8, .tensor = 2};
  EXPECT_DOUBLE_EQ(budget_bytes(budget, degrees, true) / giga, 18.25);
  EXPECT_DOUBLE_EQ(budget_bytes(budget, degrees, false) / giga, 79.5);
  EXPECT_DOUBLE_EQ(left_out_gradients(7e9, degrees, true) / giga, 1.75);
  EXPECT_DOUBLE_EQ(left_out_gradients(7e9, degrees, false) / giga, 14.0);
  const CoarseBudget of_model =
      budget_of(7e9, {.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 32000, .sequence = 8192, .batch = 4});
  EXPECT_DOUBLE_EQ(of_model.parameters, budget.parameters);
  EXPECT_DOUBLE_EQ(of_model.optimizer, budget.optimizer);
  expect_gigabytes(of_model.unit, 2 * 9.13, 0.02);  // twice that of 2,048 tokens

  const auto gibibytes = [](double bytes, const CoarseDegrees& split) {
    return degree_bytes(4.73e9, bytes, split) / 0x1p30;
  };
  const CoarseDegrees stages{.pipeline = 2, .data = 4}, tensors{.data = 4, .tensor = 2};
  EXPECT_NEAR(gibibytes(2, stages), 1.101, 0.0005);
  EXPECT_NEAR(gibibytes(10, stages), 5.506, 0.0005);
  EXPECT_NEAR(gibibytes(12, stages), 6.608, 0.0005);
  EXPECT_NEAR(gibibytes(2, tensors), 1.487, 0.0005);
  EXPECT_NEAR(gibibytes(10, tensors), 7.434, 0.0005);
  EXPECT_NEAR(gibibytes(12, tensors), 8.920, 0.0005);
}

// Of a 7B with one sequence on each of 16 GPUs.
TEST(Coarse, ActivationsOfLongSequences) {
  struct Row {
    double sequence, all, inputs_and_live, logits, scores;  // GB, digits as written
  };
  for (const Row& row : {Row{2048, 9.1, 0.82, 0.39, 0.7}, Row{8192, 36.5, 3.29, 1.57, 10.7},
                         Row{32768, 146.0, 13.15, 6.29, 172}, Row{131072, 584.1, 52.6, 25.2, 2749}}) {
    const CoarseActivations bytes = coarse_activations(
        {.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 32000, .sequence = row.sequence, .batch = 1});
    expect_gigabytes(bytes.all, row.all, 0.1);
    expect_gigabytes(bytes.inputs_and_live, row.inputs_and_live, row.inputs_and_live > 50 ? 0.1 : 0.01);
    expect_gigabytes(bytes.logits, row.logits, row.logits > 25 ? 0.1 : 0.01);
    expect_gigabytes((bytes.unfused - bytes.all) / 32, row.scores, row.scores < 100 ? 0.1 : 1);
  }
}

}  // namespace
}  // namespace weft
