// Training with every rule and state dtype: any layout, the same run, and the bytes that were predicted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "parallel/comm/local.h"
#include "parallel/runtime/staging.h"
#include "tests/parallel/cpu_rank.h"
#include "tests/trainer/planned_stage.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/plan/state_layout.h"

namespace weft {
namespace {

struct OptimizerCase {
  std::string name;
  UpdateRule rule = UpdateRule::adamw;
  DType state = DType::float32;
  double learning_rate = 1e-3;
  // How far runs of other layouts may be from one rank, derived below.
  double tolerance = 1e-5;
  double momentum = 0.9;
};
void PrintTo(const OptimizerCase& optimizer, std::ostream* out) {
  *out << optimizer.name;
}

// Layouts add gradients in other orders, which moves them by about 1e-6 of their size. Weights move, in the 10 steps of
// a run, by less than 1e-5 (parity_test.cpp derives it for steps of at most 1e-3 of a weight). The learning rates below
// keep to that: gradients are clipped to a norm of 1, and lamb moves a weight by its rate. Two rules are not smooth:
// - lion takes a sign, and an element whose mean gradient is within that noise of zero may step the other way. Take
//   learning rate r and weights of 0.1. One element in a hundred that does so in each of 10 steps puts a parameter
//   2 r 10 sqrt(0.01) / 0.1 apart.
// - a bfloat16 moment is rounded up or down by 2^-8 of itself. A difference of 1e-6 decides otherwise for
//   1e-6 2^8 = 1/4000 of all elements, in 10 steps of two moments for one in 200. A moment off by 2^-8 moves an element
//   by 2^-8 r otherwise, in each of 10 steps: 10 2^-8 r sqrt(1 / 200) / 0.1 apart. For r = 1e-3 that is 3e-5, with room
//   for chance 1e-4. Lamb moves an element by r of itself: 10 2^-8 r sqrt(1 / 200) = 8e-6. Sgd's moment sums at most 10
//   gradients of norm 1, and parameters have a norm above 1: 10 2^-8 10 r sqrt(1 / 200) = 8e-4.
std::vector<OptimizerCase> optimizer_cases() {
  const DType narrow = DType::bfloat16;
  return {
      {"adamw"},
      {"adamw_bfloat16", UpdateRule::adamw, narrow, 1e-3, 1e-4},
      {"sgd", UpdateRule::sgd, DType::float32, 1e-1, 1e-5, 0.0},
      {"momentum", UpdateRule::sgd, DType::float32, 3e-2},
      {"momentum_bfloat16", UpdateRule::sgd, narrow, 3e-2, 1e-3},
      {"lion", UpdateRule::lion, DType::float32, 1e-4, 2e-3},
      {"lion_bfloat16", UpdateRule::lion, narrow, 1e-4, 2e-3},
      {"lamb", UpdateRule::lamb, DType::float32, 3e-3},
      {"lamb_bfloat16", UpdateRule::lamb, narrow, 3e-3, 1e-5},
  };
}

Config with(Config config, const OptimizerCase& optimizer) {
  config.optimizer.rule = optimizer.rule;
  config.optimizer.state = optimizer.state;
  config.optimizer.learning_rate = optimizer.learning_rate;
  config.optimizer.momentum = optimizer.momentum;
  return config;
}

const TinyLayout shard4{.degrees = {.data_shard = 4}};
const TinyLayout hybrid_mesh{.layers = "d e d e",
                             .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}};
const TinyLayout replicas{.layers = "d e d e", .degrees = {.data_replicate = 2, .data_shard = 2, .tensor = 2}};

class OptimizerRuns : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(OptimizerRuns, AnyLayoutLearnsWhatOneRankLearns) {
  for (const TinyLayout& layout : {shard4, hybrid_mesh}) {
    const LearnedRun one = learn(with(tiny_config(layout.layers), GetParam()));
    const LearnedRun many = learn(with(config_of(layout), GetParam()));
    EXPECT_TRUE(many.faults.empty()) << many.faults.front();
    const RunDifference apart = difference(many, one);
    EXPECT_LT(apart.loss, GetParam().tolerance);
    EXPECT_LT(apart.weights, GetParam().tolerance) << apart.worst_parameter;
    RecordProperty("weights", fmt::format("{}", apart.weights));
    // The comparison means something: the run has learned.
    EXPECT_LT(one.losses.back(), one.losses.front() - 0.05);
  }
}

// Random bits are included, as functions of names and places. Only sums of another order can move a bit, and these have
// the same order. Lamb's norms do not, and its runs are only near.
TEST_P(OptimizerRuns, ShardingDoesNotChangeABit) {
  const bool exact = needs_of(GetParam().rule) == Needs::elements;
  for (TinyLayout layout : {shard4, replicas}) {
    const LearnedRun sharded = learn(with(config_of(layout), GetParam()));
    layout.strategy = ShardStrategy::no_shard;
    const RunDifference apart = difference(learn(with(config_of(layout), GetParam())), sharded);
    EXPECT_LT(apart.weights, GetParam().tolerance);
    EXPECT_TRUE(apart.bitwise_equal || !exact) << apart.weights << " in " << apart.worst_parameter;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerRuns, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& instance) { return instance.param.name; });

// Groups with states of other sizes in one unit: its norm weights, and its matrices.
std::vector<Config> uneven_groups() {
  std::vector<Config> configs;
  for (TinyLayout layout : {shard4, replicas}) {
    for (const ShardStrategy strategy : {ShardStrategy::full_shard, ShardStrategy::no_shard}) {
      layout.strategy = strategy;
      Config config = config_of(layout);
      config.run.steps = 3;
      config.optimizer.rule = UpdateRule::lion;
      const auto group = [&](UpdateGroup of) -> OptimizerConfig& {
        return config.optimizer_by_group.try_emplace(of, inherited_options(config.optimizer, of)).first->second;
      };
      group(UpdateGroup::vectors).rule = UpdateRule::adamw;
      group(UpdateGroup::embedding).state = DType::bfloat16;
      group(UpdateGroup::routing).rule = UpdateRule::sgd;
      group(UpdateGroup::routing).momentum = 0.0;
      group(UpdateGroup::head).rule = UpdateRule::lamb;
      group(UpdateGroup::head).state = DType::bfloat16;
      group(UpdateGroup::experts).learning_rate = 0.0;
      group(UpdateGroup::experts).weight_decay = 0.0;
      configs.push_back(config);
    }
  }
  return configs;
}

// Counted from the rows themselves. A rank keeps at least its own rows' states, in their dtype, and the ledger holds
// what was predicted to the byte.
void expect_predicted_state(const Config& config) {
  Config short_run = config;
  short_run.run.steps = 1;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics&) {
    const std::int64_t live = run.ledger().live()[Bucket::optimizer_state];
    EXPECT_EQ(live, run.predicted()[Bucket::optimizer_state]);
    const ResolvedGroups groups = resolved_groups(config);
    std::int64_t own = 0, padding = 0;
    for (std::size_t u = 0; u < run.stages().planned_units().size(); ++u) {
      const PlannedUnit& unit = *run.stages().planned_units()[u];
      for (const OwnedRows& rows : run.stages().owned_rows(u)) {
        const OptimizerConfig& options = groups[static_cast<std::size_t>(update_group_of(*rows.parameter))];
        own += states_of(groups, *rows.parameter) * rows.values.size() * size_of(options.state);
      }
      padding += most_states * unit.layout.shard_size * size_of(DType::float32);
    }
    EXPECT_GE(live, own);
    EXPECT_LE(live, own + padding);
    // Where all ranks hold everything, nothing but the places of vectors is added.
    const bool whole = config.shard.strategy == ShardStrategy::no_shard;
    if (whole) {
      EXPECT_LE(live, own + 1024);
    }
  };
  run_steps(short_run, observer);
}

TEST(OptimizerState, IsWhatWasPredicted) {
  for (const OptimizerCase& optimizer : optimizer_cases()) {
    for (const TinyLayout& layout : {shard4, hybrid_mesh}) expect_predicted_state(with(config_of(layout), optimizer));
  }
  for (const Config& config : uneven_groups()) expect_predicted_state(config);
}

TEST(OptimizerState, TakesAsManyBytesAsTheRuleSays) {
  const auto bytes = [](UpdateRule rule, DType state, double momentum) {
    const Config config = with(config_of({.degrees = {}}), {"", rule, state, 1e-3, 0, momentum});
    const Mesh mesh(config.parallelism);
    const std::vector<PlannedStage> stages = plan_stages(config, mesh, {});
    const BucketBytes predicted = static_bytes(stages);
    return static_cast<double>(predicted[Bucket::optimizer_state]) /
           static_cast<double>(predicted[Bucket::sharded_parameters]);
  };
  EXPECT_EQ(bytes(UpdateRule::adamw, DType::float32, 0.9), 2.0);
  EXPECT_EQ(bytes(UpdateRule::adamw, DType::bfloat16, 0.9), 1.0);
  EXPECT_EQ(bytes(UpdateRule::lamb, DType::float32, 0.9), 2.0);
  EXPECT_EQ(bytes(UpdateRule::lion, DType::float32, 0.9), 1.0);
  EXPECT_EQ(bytes(UpdateRule::sgd, DType::float32, 0.9), 1.0);
  EXPECT_EQ(bytes(UpdateRule::sgd, DType::bfloat16, 0.9), 0.5);
  EXPECT_EQ(bytes(UpdateRule::sgd, DType::float32, 0.0), 0.0);
  // Matrices have one state under muon; embedding, head and vectors have adamw's two.
  const double muon = bytes(UpdateRule::muon, DType::float32, 0.9);
  EXPECT_GT(muon, 1.0);
  EXPECT_LT(muon, 2.0);
  EXPECT_EQ(bytes(UpdateRule::muon, DType::bfloat16, 0.9), muon / 2);
}

// 2 bytes an element in place of 4, of the matrices that muon turns and of no others. What the vectors of a unit keep
// beside them is packed, with gaps of less than 8 elements
// beside each vector, in both dtypes.
TEST(OptimizerState, OfMuonInBfloat16IsHalfOfItsMatrices) {
  for (const std::string layers : {"d*4", "d e d e"}) {
    Config config = tiny_config(layers);
    config.optimizer.rule = UpdateRule::muon;
    const Mesh mesh(config.parallelism);
    const auto bytes = [&](DType dense_and_experts) {
      for (const UpdateGroup group : {UpdateGroup::dense, UpdateGroup::experts}) {
        OptimizerConfig& options = config.optimizer_by_group[group] = inherited_options(config.optimizer, group);
        options.state = dense_and_experts;
      }
      return static_bytes(plan_stages(config, mesh, {}))[Bucket::optimizer_state];
    };
    std::int64_t elements = 0, vectors = 0;
    for (const ParameterSpec& parameter : model_parameters(config.model)) {
      if (parameter.global_columns == 1) ++vectors;
      if (parameter.global_columns > 1 && (parameter.family == Family::dense || parameter.family == Family::experts)) {
        elements += parameter.global_size();
      }
    }
    const std::int64_t saved = bytes(DType::float32) - bytes(DType::bfloat16);
    EXPECT_GT(elements, 1000);
    EXPECT_LE(std::abs(saved - 2 * elements), 8 * (4 + 2) * vectors) << layers;
  }
}

// The same bits whether states lie as the shard does or packed.
TEST(OptimizerGroups, StepTheirParametersByTheirOwnRules) {
  const std::vector<Config> configs = uneven_groups();
  for (std::size_t i = 0; i < configs.size(); i += 2) {
    const LearnedRun sharded = learn(configs[i]), whole = learn(configs[i + 1]);
    EXPECT_TRUE(sharded.faults.empty());
    EXPECT_LT(difference(sharded, whole).weights, 1e-4);
    Config untrained = configs[i];
    for (const UpdateGroup group : update_groups) {
      const auto options = resolved_groups(untrained)[static_cast<std::size_t>(group)];
      untrained.optimizer_by_group[group] = options;
      untrained.optimizer_by_group[group].learning_rate = 0.0;
    }
    const LearnedRun initial = learn(untrained);
    for (const auto& [name, weights] : sharded.weights) {
      const bool frozen = name.find("experts.") != std::string::npos && !name.ends_with("norm.weight");
      EXPECT_EQ(weights == initial.weights.at(name), frozen) << name;
    }
  }
}

TEST(OptimizerGroups, TheScheduleMultipliesTheRateOfEach) {
  // A warm-up of 4 steps: in the first of them a rate of 4 r is one of r without. Both runs end there.
  Config warm = tiny_config("d*4"), plain = warm;
  warm.run.steps = plain.run.steps = 1;
  warm.lr_scheduler.warmup_steps = 4;
  for (const UpdateGroup group : update_groups) {
    OptimizerConfig options = inherited_options(plain.optimizer, group);
    options.learning_rate = 1e-3 * (1 << static_cast<int>(group));
    plain.optimizer_by_group[group] = options;
    options.learning_rate *= 4;
    warm.optimizer_by_group[group] = options;
  }
  EXPECT_TRUE(difference(learn(warm), learn(plain)).bitwise_equal);
  plain.optimizer_by_group.at(UpdateGroup::embedding).learning_rate *= 2;
  EXPECT_EQ(difference(learn(warm), learn(plain)).worst_parameter, "embedding.weight");
}

// Lion without decay moves an element by the rate, or not at all where its gradient is 0. The parameters' movement is
// what the metrics say. Elements are at most near 1, where float32 rounds to 2^-24.
TEST(OptimizerGroups, MetricsHaveTheRatesThatAreApplied) {
  Config config = config_of(hybrid_mesh);
  config.run.steps = 1;
  config.lr_scheduler.warmup_steps = 4;
  config.optimizer = {.rule = UpdateRule::lion, .learning_rate = 4e-3, .weight_decay = 0.0};
  for (const auto& [group, rate] : {std::pair(UpdateGroup::experts, 8e-3), std::pair(UpdateGroup::vectors, 2e-2)}) {
    config.optimizer_by_group[group] = config.optimizer;
    config.optimizer_by_group[group].learning_rate = rate;
  }
  const LearnedRun moved = learn(config);
  for (const UpdateGroup group : update_groups) {
    config.optimizer_by_group[group] = config.optimizer;
    config.optimizer_by_group[group].learning_rate = 0.0;
  }
  const LearnedRun initial = learn(config);
  EXPECT_EQ(initial.result.steps.front().learning_rates.size(), 1u);
  std::map<UpdateGroup, double> largest;
  for (const ParameterSpec& parameter : model_parameters(config.model)) {
    const auto &before = initial.weights.at(parameter.name), &after = moved.weights.at(parameter.name);
    double& most = largest[update_group_of(parameter)];
    for (std::size_t i = 0; i < before.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(after[i]) - static_cast<double>(before[i])));
    }
  }
  std::map<UpdateGroup, double> said;
  for (const GroupRate& rate : moved.result.steps.front().learning_rates) {
    for (const UpdateGroup group : rate.groups) said[group] = rate.rate;
  }
  ASSERT_EQ(said.size(), largest.size());
  for (const auto& [group, rate] : said) EXPECT_NEAR(largest.at(group), rate, 0x1p-23) << name_of(group);
  EXPECT_EQ(said.at(UpdateGroup::dense), 1e-3);
  EXPECT_EQ(said.at(UpdateGroup::experts), 2e-3);
  EXPECT_EQ(said.at(UpdateGroup::vectors), 5e-3);
}

// One rank's optimizer over rows of the test's own.
class OptimizerAlone : public ::testing::Test {
 protected:
  OptimizerAlone() {
    config = tiny_config("d");
    mesh.emplace(config.parallelism);
    stage = plan_stage(config, *mesh, {}, 0);
  }
  // Calls `with` with an optimizer, its ledger and its stream.
  template <typename With>
  void alone(With with) {
    run_local_ranks(1, [&](Communicator& world) {
      CpuRank rank;
      const auto compute = world.split(0, 0, "compute", rank.stream);
      const OptimizerKernels kernels = cpu_optimizer_kernels();
      const auto products = make_cpu_matrix_products();
      MemoryLedger host(*rank.device, rank.stream, MemoryPlace::host);
      Optimizer optimizer(config, kernels, {*compute, *compute}, *products, {rank.lanes, rank.ledger, host},
                          world.clock());
      with(optimizer, rank.ledger);
    });
  }
  Config config;
  std::optional<Mesh> mesh;
  PlannedStage stage;
};

TEST_F(OptimizerAlone, KeepsNoStateForWhatIsNotTrained) {
  const PlannedUnit& unit = stage.units.front();
  const ParameterSpec& parameter = unit.layout.parameters.front();
  std::vector<float> values(static_cast<std::size_t>(parameter.size()), 1.0f), gradients(values.size(), 1.0f);
  OwnedRows rows;
  rows.parameter = &parameter;
  rows.rows = parameter.rows;
  rows.values = view_of(std::span(values), parameter.rows, parameter.columns);
  float scale = 1.0f;
  const TensorView one(&scale, DType::float32, 1, 1);
  alone([&](Optimizer& optimizer, MemoryLedger& ledger) {
    optimizer.add(unit, {rows}, *mesh, 0);
    EXPECT_EQ(ledger.live()[Bucket::optimizer_state], 0);
    optimizer.step(1, one);
    EXPECT_EQ(values.front(), 1.0f);
  });
  rows.gradients = view_of(std::span(gradients), parameter.rows, parameter.columns);
  alone([&](Optimizer& optimizer, MemoryLedger& ledger) {
    optimizer.add(unit, {rows}, *mesh, 0);
    EXPECT_EQ(ledger.live()[Bucket::optimizer_state], unit.optimizer_state_bytes);
    optimizer.step(1, one);
    EXPECT_NE(values.front(), 1.0f);
  });
}

}  // namespace
}  // namespace weft
