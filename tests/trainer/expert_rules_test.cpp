// The rules of a diagnosis on experts, on steps that are written down here: no advice of one contradicts another's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "trainer/diagnosis/diagnose.h"

namespace weft {
namespace {

// A run of one block with experts. Its steps have these metrics of that block.
struct ExpertRun {
  RunOutputs outputs;

  ExpertRun(std::int64_t experts, std::int64_t chosen, int expert_ranks, std::span<const MoeMetrics> steps) {
    outputs.config.model.blocks = {BlockKind::moe};
    outputs.config.model.moe.num_experts = experts;
    outputs.config.model.moe.num_experts_per_tok = chosen;
    outputs.config.parallelism.data_shard = outputs.config.parallelism.expert = expert_ranks;
    for (const MoeMetrics& moe : steps) outputs.steps.push_back({.tokens = 64, .moe = {moe}});
  }
  MoeConfig& moe() { return outputs.config.model.moe; }
  RunEvidence evidence() const {
    return {.run = outputs,
            .mesh = Mesh(outputs.config.parallelism),
            .hardware_name = {},
            .hardware = {},
            .program = {},
            .measured = {},
            .steady = outputs.steps};
  }
};

// Steps with one expert far above the mean, and a bias with these root mean squares.
ExpertRun biased_run(std::int64_t experts, std::span<const double> means) {
  std::vector<MoeMetrics> steps;
  for (const double mean : means) {
    steps.push_back({.max_over_mean = 9.0, .bias_norm = mean * std::sqrt(static_cast<double>(experts))});
  }
  ExpertRun run(experts, 4, 1, steps);
  run.moe().selection_bias = true;
  run.moe().bias_update_rate = 0.5;
  return run;
}

using Found = RuleVerdict::Outcome;
constexpr std::array growing = {0.3, 0.5, 0.7};

// Scores of a softmax over 64 experts average 1/64, so that a bias of 0.7 decides alone.
TEST(ExpertRules, AskForOneRateOfABiasThatOutweighsItsScores) {
  const ExpertRun run = biased_run(64, growing);
  EXPECT_EQ(check_experts(run.evidence()).outcome, Found::silent);
  const RuleVerdict verdict = check_biases(run.evidence());
  ASSERT_EQ(verdict.outcome, Found::found);
  EXPECT_EQ(verdict.finding->evidence.front().value, "0.7, after half of the steps 0.5");
  EXPECT_EQ(verdict.finding->evidence.front().expected, "below 0.16");
  ASSERT_EQ(verdict.finding->changes.size(), 1u);
  EXPECT_EQ(verdict.finding->changes.front().value, "0.05");
}

// 64 null slots share the scores, and one number of the bias is theirs.
TEST(ExpertRules, CountNullSlotsAmongTheScores) {
  ExpertRun run = biased_run(64, std::array{0.05, 0.08, 0.1});
  EXPECT_EQ(check_biases(run.evidence()).outcome, Found::silent);
  run.moe().real_fraction = 0.5;
  const RuleVerdict verdict = check_biases(run.evidence());
  ASSERT_EQ(verdict.outcome, Found::found);
  EXPECT_EQ(verdict.finding->evidence.front().expected, "below 0.078");
  EXPECT_EQ(verdict.finding->evidence.front().value, "0.099, after half of the steps 0.079");
}

// Where sigmoids end at 1, or roots of softplus nowhere, the same bias does not outweigh the scores. At ten times the
// rate it would.
TEST(ExpertRules, MeasureABiasByTheScoresOfItsRouter) {
  for (const Scoring scoring : {Scoring::sigmoid, Scoring::sqrt_softplus}) {
    ExpertRun run = biased_run(64, growing);
    run.moe().scoring = scoring;
    EXPECT_EQ(check_biases(run.evidence()).outcome, Found::silent);
    const RuleVerdict verdict = check_experts(run.evidence());
    ASSERT_EQ(verdict.outcome, Found::found);
    EXPECT_EQ(verdict.finding->changes.size(), 0u);
    EXPECT_NE(verdict.finding->sentence.find("a larger bias_update_rate is no remedy"), std::string::npos);
  }
  ExpertRun beyond = biased_run(64, std::array{1.0, 1.5, 2.0});
  beyond.moe().scoring = Scoring::sigmoid;
  EXPECT_EQ(check_biases(beyond.evidence()).outcome, Found::found);
  beyond.moe().scoring = Scoring::sqrt_softplus;
  EXPECT_EQ(check_biases(beyond.evidence()).outcome, Found::silent);
}

// Ten times a bias of 0.04 is well below sigmoids, and above the softmax of 64 experts.
TEST(ExpertRules, AskForALargerRateWhileTenTimesTheBiasLeavesTheScoresTheirSay) {
  ExpertRun run = biased_run(64, std::array{0.02, 0.03, 0.04});
  EXPECT_EQ(check_experts(run.evidence()).finding->changes.size(), 0u);
  run.moe().scoring = Scoring::sigmoid;
  const RuleVerdict verdict = check_experts(run.evidence());
  ASSERT_EQ(verdict.finding->changes.size(), 1u);
  EXPECT_EQ(verdict.finding->changes.front().value, "5");
  ExpertRun at_rest = biased_run(64, std::array{0.04, 0.03, 0.032});
  at_rest.moe().scoring = Scoring::sigmoid;
  EXPECT_EQ(check_experts(at_rest.evidence()).finding->changes.size(), 0u);
}

// Frozen routers keep their bias at any rate. The loss balances what they read.
TEST(ExpertRules, AskForNoRateOfAFrozenRouter) {
  ExpertRun run = biased_run(64, std::array{0.0, 0.0, 0.0});
  run.outputs.config.training.frozen = {Family::routing};
  run.moe().router_aux_loss_coef = 0.0;
  const RuleVerdict verdict = check_experts(run.evidence());
  ASSERT_EQ(verdict.outcome, Found::found);
  ASSERT_EQ(verdict.finding->changes.size(), 1u);
  EXPECT_EQ(verdict.finding->changes.front().setting, "model.moe.router_aux_loss_coef");
  EXPECT_EQ(verdict.finding->changes.front().value, "0.01");
}

// A bias that has come to rest above the mean score is what the load needs.
TEST(ExpertRules, LeaveABiasThatHasComeToRest) {
  const ExpertRun run = biased_run(64, std::array{0.1, 0.4, 0.69, 0.71, 0.70});
  EXPECT_EQ(check_biases(run.evidence()).outcome, Found::silent);
  EXPECT_EQ(check_experts(run.evidence()).outcome, Found::found);
}

TEST(ExpertRules, ChangeNoKeyOfARouterThatIsNotAsked) {
  ExpertRun run = biased_run(64, growing);
  run.moe().force_balance = true;
  for (const RuleVerdict& verdict : {check_experts(run.evidence()), check_biases(run.evidence())}) {
    EXPECT_EQ(verdict.outcome, Found::silent);
    EXPECT_NE(verdict.note.find("model.moe.force_balance"), std::string::npos);
  }
}

// Steps of so many tokens by expert; sixteen experts on four ranks.
std::vector<MoeMetrics> steps_of(const std::vector<std::vector<std::int64_t>>& tokens) {
  std::vector<MoeMetrics> steps;
  for (const std::vector<std::int64_t>& of_step : tokens) steps.push_back(expert_balance(2, of_step, 4));
  return steps;
}

TEST(ExpertRules, NameTheBlockTheExpertsAndTheRank) {
  const std::vector<std::int64_t> one = {9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 1, 0, 9, 9, 0, 9},
                                  two = {9, 9, 9, 9, 9, 9, 9, 9, 0, 1, 0, 0, 9, 9, 9, 9};
  const ExpertRun run(16, 2, 4, steps_of({one, two, one}));
  const RuleVerdict verdict = check_experts(run.evidence());
  ASSERT_EQ(verdict.outcome, Found::found);
  ASSERT_EQ(verdict.finding->evidence.size(), 2u);
  EXPECT_EQ(verdict.finding->evidence[0].what, "block 2: collapsed experts, which get no token");
  EXPECT_EQ(verdict.finding->evidence[0].value, "8, 11 in all of 3 steps");
  EXPECT_EQ(verdict.finding->evidence[1].what,
            "block 2: tokens over the mean of the starving rank, rank 2 of an expert group (experts 8 to 11)");
}

// Experts that are unused in turn, as those of a small batch are, have not collapsed.
TEST(ExpertRules, CallNoExpertCollapsedThatGetsATokenAtTimes) {
  std::vector<std::int64_t> one(16, 4), two(16, 4);
  one[3] = two[4] = 0;
  EXPECT_EQ(check_experts(ExpertRun(16, 2, 4, steps_of({one, two, one})).evidence()).outcome, Found::silent);
  EXPECT_EQ(check_experts(ExpertRun(16, 2, 4, steps_of({one, one, one})).evidence()).outcome, Found::found);
}

// 64 tokens with one choice each do not reach 96 experts, however evenly they are dealt.
TEST(ExpertRules, CallNoExpertCollapsedWhereChoicesAreFewerThanExperts) {
  std::vector<std::int64_t> dealt(96, 0);
  std::fill_n(dealt.begin(), 64, 1);
  EXPECT_EQ(check_experts(ExpertRun(96, 1, 1, std::vector(3, expert_balance(0, dealt))).evidence()).outcome,
            Found::silent);
  const RuleVerdict twice = check_experts(ExpertRun(96, 2, 1, std::vector(3, expert_balance(0, dealt))).evidence());
  ASSERT_EQ(twice.outcome, Found::found);
  EXPECT_EQ(twice.finding->evidence.front().value,
            "64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79 and perhaps more in all of 3 steps");
}

}  // namespace
}  // namespace weft
