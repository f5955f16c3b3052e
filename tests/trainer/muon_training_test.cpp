// Training with Muon. Whole matrices are put together from whatever rows the ranks own, so that any layout learns what
// one rank learns. State, memory and traffic are those of the plan.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/trainer/kept_run.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/stage_layout.h"

namespace weft {
namespace {

// Layouts move a gradient by about 1e-6 of its norm (parity_test.cpp). Muon sends small singular values towards 1. Five
// iterations multiply one by at most 3.4445^5 = 485, and with it the noise in its direction. In the worst case the
// direction is then off by 5e-4 of its size. Spread over 20 singular values of which a few are that small, it is off by
// 1e-4. A step moves an element by 0.2 of the rate (match_adamw), 2e-4 against weights of 0.1: 2e-3 of it. 10 steps:
// 10 x 2e-3 x 1e-4 = 2e-6, and what is left to adamw stays within what it has elsewhere.
constexpr double muon_training_tolerance = 1e-5;

Config with_muon(Config config, DType state = DType::float32) {
  config.optimizer.rule = UpdateRule::muon;
  config.optimizer.state = state;
  return config;
}

std::vector<TinyLayout> muon_training_layouts() {
  const std::string mixed = "d e d e";
  return {
      {.name = "shard4", .layers = mixed, .degrees = {.data_shard = 4}},
      {.name = "tensor2", .layers = mixed, .degrees = {.tensor = 2}},
      {.name = "shard2_expert2", .layers = mixed, .degrees = {.data_shard = 2, .expert = 2}},
      {.name = "replicate2", .layers = mixed, .degrees = {.data_replicate = 2}},
      {.name = "shard4_no_shard",
       .layers = mixed,
       .degrees = {.data_shard = 4, .expert = 2},
       .strategy = ShardStrategy::no_shard},
      {.name = "pp2_replicate2_shard2_tensor2_expert2",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_replicate = 2, .data_shard = 2, .tensor = 2, .expert = 2}},
      {.name = "shard4_blocks2", .layers = mixed, .degrees = {.data_shard = 4}, .wrap = "blocks 2"},
      {.name = "shard2_expert2_frozen_dense",
       .layers = mixed,
       .degrees = {.data_shard = 2, .expert = 2},
       .frozen = {Family::dense}},
      {.name = "pp2_shard2_frozen_experts",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .frozen = {Family::experts}},
  };
}

class MuonTraining : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(MuonTraining, LearnsWhatOneRankLearns) {
  Config one_rank = tiny_config(GetParam().layers);
  one_rank.training.frozen = GetParam().frozen;
  const LearnedRun one = learn(with_muon(one_rank));
  const LearnedRun many = learn(with_muon(config_of(GetParam())));
  EXPECT_TRUE(many.faults.empty()) << many.faults.front();
  const RunDifference apart = difference(many, one);
  EXPECT_LT(apart.loss, muon_training_tolerance);
  EXPECT_LT(apart.weights, muon_training_tolerance) << apart.worst_parameter;
  RecordProperty("weights", fmt::format("{}", apart.weights));
  // The comparison means something: the run has learned, and not by adamw.
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.05);
  EXPECT_GT(difference(learn(one_rank), one).weights, 100 * muon_training_tolerance);
}

TEST_P(MuonTraining, KeepsTheStateThatWasPredicted) {
  for (const DType state : {DType::float32, DType::bfloat16}) {
    Config config = with_muon(config_of(GetParam()), state);
    config.run.steps = 2;
    RunObserver observer;
    observer.after_step = [](RankRun& run, const StepMetrics&) {
      const std::int64_t predicted = run.predicted()[Bucket::optimizer_state];
      EXPECT_EQ(run.ledger().live()[Bucket::optimizer_state], predicted);
      EXPECT_EQ(run.ledger().peak_by_bucket()[Bucket::optimizer_state], predicted);
      EXPECT_GT(predicted, 0);
    };
    run_steps(config, observer);
  }
}

// Nothing but STEP exchanges rows among the tokens of a stage: routing helpers are summed there by another operation.
TEST_P(MuonTraining, ExchangesWhatTheProgramSays) {
  Config config = with_muon(config_of(GetParam()));
  config.run.steps = 2;
  std::mutex mutex;
  CommunicationCounters expected;
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    const std::lock_guard lock(mutex);
    for (const ProgramCollective& collective : run.program().update) {
      if (collective.during != Op::optimizer_step) continue;
      EXPECT_EQ(collective.op, CollectiveOp::all_to_all);
      CommunicationCount& count = expected[{std::string(name_of(collective.group)), collective.op}];
      count.count += collective.count;
      count.bytes += collective.bytes;
    }
  };
  const KeptRun result = run_kept(config, observer);
  ASSERT_FALSE(expected.empty());
  for (const StepMetrics& step : result.steps) {
    for (const auto& [key, count] : expected) {
      ASSERT_TRUE(step.communication.contains(key)) << key.group;
      EXPECT_EQ(step.communication.at(key).count, count.count) << key.group << ", step " << step.step;
      EXPECT_EQ(step.communication.at(key).bytes, count.bytes) << key.group << ", step " << step.step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, MuonTraining, ::testing::ValuesIn(muon_training_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// Strategies add gradients in the same order, so no bit moves. Other layouts move a gradient by 1e-6 of itself, which
// rounds another way one momentum in 1e-6 2^8 = 1/4000, in 10 steps one in 400. A momentum off by 2^-8 in one place of
// 400 is off by 2^-8 / 20 = 2e-4 as a whole. With the factors above that moves a direction by 2e-4 x 100 = 2e-2 of its
// size, and a weight in 10 steps by 10 x 2e-3 x 2e-2 = 4e-4 of itself.
TEST(MuonTrainingInBfloat16, LearnsTheSameInEveryLayout) {
  constexpr double tolerance = 1e-3;
  TinyLayout sharded{.layers = "d e d e", .degrees = {.data_shard = 4, .expert = 2}}, whole = sharded;
  whole.strategy = ShardStrategy::no_shard;
  const auto learned = [](const Config& config) { return learn(with_muon(config, DType::bfloat16)); };
  const LearnedRun one = learned(tiny_config("d e d e")), many = learned(config_of(sharded));
  EXPECT_TRUE(difference(learned(config_of(whole)), many).bitwise_equal);
  for (const LearnedRun& run :
       {many, learned(config_of({.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2}}))}) {
    EXPECT_TRUE(run.faults.empty());
    const RunDifference apart = difference(run, one);
    EXPECT_LT(apart.loss, tolerance);
    EXPECT_LT(apart.weights, tolerance) << apart.worst_parameter;
  }
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.05);
  // The momentum is not that of float32.
  EXPECT_FALSE(difference(learn(with_muon(tiny_config("d e d e"))), one).bitwise_equal);
}

// Of matrices Muon keeps one state where adamw keeps two, and of sharded ones a rank keeps its share. These are at
// least half of the states of an adamw run, and less than all.
TEST(MuonTrainingState, IsBetweenHalfAndAllOfAdamw) {
  for (const TinyLayout& layout : muon_training_layouts()) {
    const auto states = [](const Config& config, int rank) {
      const Mesh mesh(config.parallelism);
      const Coordinates at = mesh.coordinates(rank);
      return static_bytes(plan_stages(config, mesh, at))[Bucket::optimizer_state];
    };
    for (int rank = 0; rank < layout.degrees.world(); ++rank) {
      const std::int64_t adamw = states(config_of(layout), rank), muon = states(with_muon(config_of(layout)), rank);
      EXPECT_GE(2 * muon, adamw) << layout.name;
      EXPECT_LT(muon, adamw) << layout.name;
    }
  }
}

}  // namespace
}  // namespace weft
