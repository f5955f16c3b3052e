// Families that compute in dtypes of their own, and families that are not trained. A setting of one family reaches its
// parameters, and sharding them changes no bit.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "parallel/shard/replicated.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

const std::vector<TinyLayout> layouts = {
    {.name = "pp1_shard4", .layers = "d e d e", .degrees = {.data_shard = 4, .expert = 2}},
    {.name = "pp2_shard4", .layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 4, .expert = 2}},
    {.name = "shard2_tensor2",
     .layers = "d e d e",
     .degrees = {.data_shard = 2, .tensor = 2, .expert = 2},
     .residency = "reshard_after_use"},
};

Config with_strategy(Config config, ShardStrategy strategy) {
  config.shard.strategy = strategy;
  for (auto& [family, policy] : config.shard_by_family) policy.strategy = strategy;
  return config;
}

constexpr PrecisionConfig wide{}, narrow{DType::float32, DType::bfloat16, DType::bfloat16};

struct FamilyPrecision {
  std::string name;
  PrecisionConfig standard;
  std::map<Family, PrecisionConfig> own;
};

class MixedPrecision : public ::testing::TestWithParam<FamilyPrecision> {};

TEST_P(MixedPrecision, RunsAndShardsToTheBitAndIsNotUniform) {
  for (const TinyLayout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    Config config = config_of(layout);
    config.run.steps = 3;  // as in strategy_test.cpp
    config.precision = GetParam().standard;
    const LearnedRun uniform = learn(config);
    config.precision_by_family = GetParam().own;
    const LearnedRun sharded = learn(config);
    EXPECT_TRUE(sharded.faults.empty()) << sharded.faults.front();
    for (const double loss : sharded.losses) EXPECT_TRUE(std::isfinite(loss));
    EXPECT_FALSE(difference(sharded, uniform).bitwise_equal);
    const RunDifference apart = difference(learn(with_strategy(config, ShardStrategy::no_shard)), sharded);
    EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
    // Each family's own: none of them is without effect.
    for (const auto& [family, precision] : GetParam().own) {
      Config without = config;
      without.precision_by_family.erase(family);
      EXPECT_FALSE(difference(learn(without), sharded).bitwise_equal) << name_of(family);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, MixedPrecision,
    ::testing::Values(FamilyPrecision{"wide_ends", narrow, {{Family::embedding, wide}, {Family::head, wide}}},
                      FamilyPrecision{"wide_experts", narrow, {{Family::experts, wide}}},
                      FamilyPrecision{"narrow_experts", wide, {{Family::experts, narrow}}}),
    [](const auto& instance) { return instance.param.name; });

// Each family by its own strategy, residency, lookahead and wrap: gathers and reductions of one stand between those of
// the others on the same lanes.
TEST(FamiliesShardedByThemselves, LearnToTheBitWhatNoShardLearns) {
  for (const TinyLayout& layout : layouts) {
    for (const PrecisionConfig& precision : {wide, narrow}) {
      SCOPED_TRACE(fmt::format("{}, reduced in {}", layout.name, name_of(precision.reduction)));
      Config config = config_of(layout);
      config.run.steps = 3;
      config.precision = precision;
      auto& policies = config.shard_by_family;
      policies[Family::embedding] = {.strategy = ShardStrategy::optimizer,
                                     .residency = {},
                                     .lookahead = 3,
                                     .reduction = {ReductionKind::last_microbatch},
                                     .wrap = {WrapKind::block}};
      policies[Family::dense] = {.strategy = ShardStrategy::full_shard,
                                 .residency = {Residency::reshard_after_use},
                                 .lookahead = 2,
                                 .reduction = {ReductionKind::every, 3},
                                 .wrap = {WrapKind::half_block}};
      policies[Family::experts] = {.strategy = ShardStrategy::shard_grad_op,
                                   .residency = {Residency::step},
                                   .lookahead = 0,
                                   .reduction = {ReductionKind::each_microbatch},
                                   .wrap = {WrapKind::blocks, 2}};
      policies[Family::head] = {.strategy = ShardStrategy::full_shard,
                                .residency = {Residency::keep_after_forward},
                                .lookahead = 1,
                                .reduction = {ReductionKind::each_microbatch},
                                .wrap = {WrapKind::block}};
      for (const ConfigRule& rule : config_rules()) EXPECT_TRUE(rule.check(config).empty());
      const LearnedRun run = learn(config);
      EXPECT_TRUE(run.faults.empty()) << run.faults.front();
      Config whole = with_strategy(config, ShardStrategy::no_shard);
      const RunDifference apart = difference(learn(whole), run);
      EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
      // One family alone kept whole, the others sharded.
      whole = config;
      whole.shard_by_family[Family::dense].strategy = ShardStrategy::no_shard;
      EXPECT_TRUE(difference(learn(whole), run).bitwise_equal);
    }
  }
}

// What a rank holds of units that are trained, and whether its program reduces any other.
struct TrainedBytes {
  std::int64_t gradients = 0, states = 0;
};

TrainedBytes trained_bytes(RankRun& run) {
  TrainedBytes bytes;
  for (const PlannedUnit* held : run.stages().planned_units()) {
    const PlannedUnit& unit = *held;
    if (unit.frozen) continue;
    bytes.gradients += unit.plan.replicated() ? ReplicatedParameters::bytes(unit.plan.parameters)
                                              : unit.layout.shard_size * size_of(DType::float32);
    bytes.states += unit.optimizer_state_bytes;
  }
  return bytes;
}

int reductions_of(const Program& program, Family family) {
  int count = 0;
  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) {
      if (!is_reduction(action.op)) continue;
      count += program.units[static_cast<std::size_t>(*action.unit)].family == family ? 1 : 0;
    }
  }
  return count;
}

class FrozenFamily : public ::testing::TestWithParam<Family> {};

TEST_P(FrozenFamily, KeepsEveryBitAndHasNoGradient) {
  const Family frozen = GetParam();
  for (TinyLayout layout : layouts) {
    SCOPED_TRACE(layout.name);
    layout.frozen = {frozen};
    Config config = config_of(layout);
    config.run.steps = 3;
    std::mutex mutex;
    WeightCollector collector;
    std::map<int, TrainedBytes> bytes;  // by rank
    RunObserver observer;
    observer.before_first_step = [&](RankRun& run) {
      const std::lock_guard lock(mutex);
      collector.add(run.stream(), run.stages());
    };
    observer.after_step = [&](RankRun& run, const StepMetrics&) {
      const std::lock_guard lock(mutex);
      const TrainedBytes expected = bytes[run.rank()] = trained_bytes(run);
      EXPECT_EQ(run.ledger().live()[Bucket::sharded_gradients], expected.gradients);
      EXPECT_EQ(run.ledger().live()[Bucket::optimizer_state], expected.states);
      EXPECT_EQ(run.predicted()[Bucket::sharded_gradients], expected.gradients);
      EXPECT_EQ(run.predicted()[Bucket::optimizer_state], expected.states);
      EXPECT_EQ(reductions_of(run.program(), frozen), 0);
    };
    const LearnedRun run = learn(config, observer);
    EXPECT_TRUE(run.faults.empty()) << run.faults.front();
    LearnedRun initial;
    collector.finish(initial);
    int kept = 0;
    for (const ParameterSpec& parameter : model_parameters(config.model)) {
      const bool same = run.weights.at(parameter.name) == initial.weights.at(parameter.name);
      EXPECT_EQ(same, parameter.family == frozen) << parameter.name;
      kept += same ? 1 : 0;
    }
    EXPECT_GT(kept, 0);
    const RunDifference apart = difference(learn(with_strategy(config, ShardStrategy::no_shard)), run);
    EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;

    // Trained, the family has all that it lacks here.
    config.training.frozen.clear();
    observer = {};
    std::int64_t more = 0;
    observer.after_step = [&](RankRun& trained, const StepMetrics& metrics) {
      const std::lock_guard lock(mutex);
      if (metrics.step > 1) return;
      EXPECT_GT(reductions_of(trained.program(), frozen), 0);
      more += trained.ledger().live()[Bucket::optimizer_state] - bytes.at(trained.rank()).states;
    };
    EXPECT_FALSE(difference(learn(config, observer), run).bitwise_equal);
    EXPECT_GT(more, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FrozenFamily,
                         ::testing::Values(Family::embedding, Family::head, Family::experts, Family::dense,
                                           Family::routing),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

// Everything else frozen: the one that is left still learns, whatever stands between it and the loss.
TEST(FrozenFamilies, LeaveOneThatLearns) {
  const std::set<Family> all = {Family::embedding, Family::head, Family::experts, Family::dense, Family::routing};
  for (const TinyLayout& base : layouts) {
    TinyLayout layout = base;
    layout.frozen = all;
    Config config = config_of(layout);
    config.run.steps = 3;
    const LearnedRun initial = learn(config);
    EXPECT_EQ(initial.gradient_norms.back(), 0.0);
    for (const Family left : all) {
      SCOPED_TRACE(fmt::format("{} {}", layout.name, name_of(left)));
      config.training.frozen = all;
      config.training.frozen.erase(left);
      const LearnedRun run = learn(config);
      for (const ParameterSpec& parameter : model_parameters(config.model)) {
        EXPECT_EQ(run.weights.at(parameter.name) != initial.weights.at(parameter.name), parameter.family == left)
            << parameter.name;
      }
      const RunDifference apart = difference(learn(with_strategy(config, ShardStrategy::no_shard)), run);
      EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
    }
  }
}

}  // namespace
}  // namespace weft
