// The sharding of a family decides memory and traffic, and nothing else. Every strategy, residency, lookahead, wrap and
// limit of reductions in flight learns, to the bit, as no_shard with the same precision and reduction.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "tests/trainer/tiny_layout.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

struct PrecisionCase {
  std::string name;
  PrecisionConfig precision;  // stored, computed in, reduced in
  double unit_roundoff = 0x1p-24;
};
const std::vector<PrecisionCase> precisions = {
    {"float32", {}},
    {"bfloat16_compute", {DType::float32, DType::bfloat16, DType::float32}, 0x1p-8},
    {"bfloat16_reduction", {DType::float32, DType::bfloat16, DType::bfloat16}, 0x1p-8},
    {"float16_compute", {DType::float32, DType::float16, DType::float32}, 0x1p-11},
    {"bfloat16_stored", {DType::bfloat16, DType::bfloat16, DType::float32}, 0x1p-8},
};

struct MeshCase {
  std::string name;
  Degrees degrees;
};
const std::vector<MeshCase> strategy_meshes = {
    {"pp1_shard4", {.data_shard = 4, .expert = 2}},
    {"pp2_shard4", {.pipeline = 2, .data_shard = 4, .expert = 2}},
    {"shard2_replicate2", {.data_replicate = 2, .data_shard = 2, .expert = 2}},
    {"shard2_context2_tensor2", {.data_shard = 2, .context = 2, .tensor = 2, .expert = 2}},
};

// Over 4 microbatches of a rank: "every 3" reduces after the third and the fourth.
const std::vector<std::string> strategy_reductions = {"last_microbatch", "each_microbatch", "every 3"};
const std::vector<std::string> wraps = {"block", "half_block", "blocks 2", "minimum_bytes 6000", "root"};
constexpr int few[] = {0, 1, 3};  // gathers ahead, and inputs of reductions in flight

// How long parameters stay: a residency for every stage, or one for each.
struct Stay {
  ShardStrategy strategy = ShardStrategy::full_shard;
  std::string residency = "stage";
  bool by_stage = false;  // the last stage keeps them for the step

  std::string name() const { return fmt::format("{} {}{}", name_of(strategy), residency, by_stage ? ", step" : ""); }
};
const std::vector<Stay> stays = {
    {.residency = "reshard_after_use"},
    {.residency = "keep_after_forward"},
    {.residency = "keep_after_backward"},
    {.residency = "while_on_stage"},
    {.residency = "window 2"},
    {.residency = "step"},
    {.residency = "2"},
    {.residency = "reshard_after_use", .by_stage = true},
    {},
    {.strategy = ShardStrategy::shard_grad_op},
    {.strategy = ShardStrategy::optimizer},
};

struct Variant {
  Stay stay = {};
  std::string reduction = "last_microbatch", wrap = "block";
  int lookahead = 1, reduce_inputs = 1;

  std::string name() const {
    return fmt::format("{}, {}, {}, lookahead {}, reduce_inputs {}", stay.name(), reduction, wrap, lookahead,
                       reduce_inputs);
  }
};

Variant reduced(const std::string& reduction, ShardStrategy strategy = ShardStrategy::full_shard) {
  Variant variant;
  variant.reduction = reduction;
  variant.stay.strategy = strategy;
  return variant;
}

// Two ranks that share everything between them are no island.
bool has_island_of_two(const Degrees& degrees, Family family) {
  return shard_ranks(degrees, family) > 2;
}

// All stays and reductions with each mesh and precision. The other inputs turn with them at different paces. A part of
// their product therefore meets every value of every input under each mesh and several precisions
// (StrategyGrid.MeetsEveryValueUnderEachMesh).
std::vector<Variant> variants(std::size_t mesh, std::size_t precision) {
  std::vector<Variant> result;
  for (std::size_t s = 0; s < stays.size(); ++s) {
    for (std::size_t r = 0; r < strategy_reductions.size(); ++r) {
      // Gradients of ZeRO-1 stay whole until the last microbatch.
      if (stays[s].strategy == ShardStrategy::optimizer && strategy_reductions[r] != "last_microbatch") continue;
      if (stays[s].residency == "2" && !has_island_of_two(strategy_meshes[mesh].degrees, Family::dense)) continue;
      result.push_back({stays[s], strategy_reductions[r], wraps[(s + 2 * r + precision) % wraps.size()],
                        few[(s + r + 2 * precision + mesh) % 3], few[(s / 3 + s + 2 * r + precision + mesh) % 3]});
    }
  }
  return result;
}

// Three steps: the gradients of the first, and their effect on weights and moments, are in the losses of the second.
// Those of the second are in the third, which alone has moments from before. Later steps repeat that.
Config configured(std::size_t mesh, std::size_t precision, const Variant& variant) {
  Config config = config_of({.layers = "d e d e",
                             .degrees = strategy_meshes[mesh].degrees,
                             .residency = variant.stay.residency,
                             .reduction = variant.reduction,
                             .strategy = variant.stay.strategy,
                             .precision = precisions[precision].precision,
                             .lookahead = variant.lookahead,
                             .wrap = variant.wrap,
                             .reduce_inputs = variant.reduce_inputs});
  for (auto& [family, policy] : config.shard_by_family) {
    if (variant.stay.by_stage) {
      policy.residency_by_stage.assign(static_cast<std::size_t>(config.parallelism.pipeline), policy.residency);
      policy.residency_by_stage.back() = {Residency::step};
    }
    if (policy.residency.kind == Residency::island && !has_island_of_two(config.parallelism, family))
      policy.residency = {Residency::reshard_after_use};
  }
  config.run.steps = 3;
  config.training.initial_loss_scale = 1024.0;
  for (const ConfigRule& rule : config_rules()) {
    for (const std::string& message : rule.check(config)) ADD_FAILURE() << variant.name() << ": " << message;
  }
  return config;
}

LearnedRun unsharded(std::size_t mesh, std::size_t precision, const std::string& reduction) {
  return learn(configured(mesh, precision, reduced(reduction, ShardStrategy::no_shard)));
}

class Strategies : public ::testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

TEST_P(Strategies, LearnToTheBitWhatNoShardLearns) {
  const auto [mesh, precision] = GetParam();
  std::map<std::string, LearnedRun> expected;
  for (const Variant& variant : variants(mesh, precision)) {
    if (!expected.contains(variant.reduction)) {
      expected[variant.reduction] = unsharded(mesh, precision, variant.reduction);
    }
    const LearnedRun& whole = expected.at(variant.reduction);
    ASSERT_TRUE(whole.faults.empty()) << whole.faults.front();
    const LearnedRun run = learn(configured(mesh, precision, variant));
    EXPECT_TRUE(run.faults.empty()) << variant.name() << ": " << run.faults.front();
    const RunDifference apart = difference(run, whole);
    EXPECT_TRUE(apart.bitwise_equal) << variant.name() << ": " << apart.weights << " in " << apart.worst_parameter;
    for (const StepMetrics& step : run.result.steps) EXPECT_FALSE(step.skipped) << variant.name();
    EXPECT_NE(run.losses.front(), run.losses.back());
  }
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<std::size_t, std::size_t>>& instance) {
  const auto [mesh, precision] = instance.param;
  return strategy_meshes[mesh].name + "_" + precisions[precision].name;
}
using ::testing::Combine, ::testing::Range, ::testing::Values;
INSTANTIATE_TEST_SUITE_P(Grid, Strategies, Combine(Range<std::size_t>(0, 2), Range<std::size_t>(0, 5)), case_name);
INSTANTIATE_TEST_SUITE_P(Others, Strategies, Combine(Values<std::size_t>(2, 3), Values<std::size_t>(0, 2)), case_name);

// With every expert on every rank four ranks share their shards.
TEST(ExpertIslands, LearnToTheBitWhatNoShardLearns) {
  for (const PrecisionCase& precision : precisions) {
    TinyLayout layout{.layers = "d e d e",
                      .degrees = {.pipeline = 2, .data_shard = 4},
                      .residency = "2",
                      .precision = precision.precision};
    const auto run = [&] {
      Config config = config_of(layout);
      config.run.steps = 3;
      config.training.initial_loss_scale = 1024.0;
      return learn(config);
    };
    const LearnedRun islands = run();
    EXPECT_GT(islands.result.steps.back().communication.count({"edp_island", CollectiveOp::all_gather}), 0u);
    layout.strategy = ShardStrategy::no_shard;
    layout.residency = "stage";
    EXPECT_TRUE(difference(run(), islands).bitwise_equal) << precision.name;
  }
}

TEST(StrategyGrid, MeetsEveryValueUnderEachMesh) {
  for (std::size_t mesh = 0; mesh < 2; ++mesh) {
    std::map<std::string, std::set<std::size_t>> met;  // value -> precisions
    for (std::size_t precision = 0; precision < precisions.size(); ++precision) {
      for (const Variant& variant : variants(mesh, precision)) {
        for (const std::string& value :
             {variant.stay.name(), variant.reduction, variant.wrap, fmt::format("lookahead {}", variant.lookahead),
              fmt::format("reduce_inputs {}", variant.reduce_inputs)}) {
          met[value].insert(precision);
        }
      }
    }
    EXPECT_EQ(met.size(), stays.size() + strategy_reductions.size() + wraps.size() + 2 * std::size(few));
    for (const auto& [value, under] : met)
      EXPECT_GE(under.size(), 2u) << value << " under " << strategy_meshes[mesh].name;
  }
}

// Reductions at other times add the same 4 microbatches of 4 ranks in another order. Each of 15 additions rounds
// relative to at most the sum of magnitudes, twice. That is 30 u = 2e-6 of a gradient at most, 4 u = 2.4e-7 typically,
// for roundings go either way. Adam makes of it that part of a step, 1e-3 a step and element, against weights of 0.1.
// Three steps move a weight by 3 x 1e-2 x 2e-6 = 6e-8 of its size. Three roundings of u = 6e-8 themselves come on top.
// Losses are sums over tokens in float64, and move with the weights. In all less than 1e-6.
constexpr double reordered_strategy = 1e-6;

TEST(Reductions, DifferOnlyInTheOrderOfAdditions) {
  for (std::size_t mesh = 0; mesh < strategy_meshes.size(); ++mesh) {
    const LearnedRun last = learn(configured(mesh, 0, Variant()));
    std::set<std::vector<float>> embeddings = {last.weights.at("embedding.weight")};
    for (const std::string& reduction : strategy_reductions) {
      const LearnedRun other = learn(configured(mesh, 0, reduced(reduction)));
      const RunDifference apart = difference(other, last);
      EXPECT_LT(apart.loss, reordered_strategy) << reduction;
      EXPECT_LT(apart.weights, reordered_strategy) << reduction << ": " << apart.worst_parameter;
      embeddings.insert(other.weights.at("embedding.weight"));
    }
    // The orders are three indeed.
    EXPECT_EQ(embeddings.size(), 3u) << strategy_meshes[mesh].name;
  }
}

TEST(Reductions, AddingUpInShardsIsFullShardInAnotherOrder) {
  const auto run = [](const char* reduction, Accumulation accumulation, std::int64_t steps) {
    Config config = configured(2, 0, reduced(reduction));
    for (auto& [family, policy] : config.shard_by_family) policy.accumulation = accumulation;
    config.run.steps = steps;
    return learn(config);
  };
  const LearnedRun sharded = run("last_microbatch", Accumulation::sharded, 3);
  const LearnedRun whole = run("last_microbatch", Accumulation::unsharded, 3);
  const RunDifference apart = difference(sharded, whole);
  EXPECT_LT(apart.loss, reordered_strategy);
  EXPECT_LT(apart.weights, reordered_strategy) << apart.worst_parameter;
  EXPECT_FALSE(apart.bitwise_equal);
  // By default each is the one or the other, to the bit.
  EXPECT_TRUE(difference(run("auto", Accumulation::by_strategy, 3), sharded).bitwise_equal);
  EXPECT_TRUE(difference(run("auto", Accumulation::unsharded, 3), whole).bitwise_equal);
  EXPECT_TRUE(difference(run("last_microbatch", Accumulation::by_strategy, 3), whole).bitwise_equal);
  const LearnedRun longer = run("last_microbatch", Accumulation::sharded, 10);
  EXPECT_TRUE(longer.faults.empty());
  EXPECT_LT(longer.losses.back(), longer.losses.front() - 0.05);
}

// How far a narrow dtype may lead. A number is rounded about 10 times on its way through a block (norm, projections,
// attention, activation, sums). 4 blocks and the ends make 44, which add up as sqrt(44) u in the logits. These deviate
// by sqrt(20) x 0.1 = 0.45, and a loss moves by at most twice the error of a logit. That is 2 x 0.45 sqrt(44) u = 6 u,
// of losses of 5.5. 4 u leaves room for tokens that are routed elsewhere.
//   Of gradients e = sqrt(44) u is noise, and so is that part of a step. Elements smaller than the noise, a part e of
// all, may step the other way: 2 rate sqrt(e) each step. What is stored in bfloat16 is rounded once at first and by up
// to 2 u of itself in each of three steps: 7 u.
TEST(Precisions, StayAsNearFloat32AsTheirUnitRoundoffSays) {
  for (std::size_t mesh = 0; mesh < 2; ++mesh) {
    const LearnedRun wide = learn(configured(mesh, 0, Variant()));
    for (std::size_t p = 1; p < precisions.size(); ++p) {
      const PrecisionCase& narrow = precisions[p];
      SCOPED_TRACE(strategy_meshes[mesh].name + " " + narrow.name);
      const LearnedRun run = learn(configured(mesh, p, Variant()));
      const double noise = std::sqrt(44.0) * narrow.unit_roundoff;
      const double stored = narrow.precision.parameters == DType::bfloat16 ? 7 * narrow.unit_roundoff : 0.0;
      const RunDifference apart = difference(run, wide);
      EXPECT_LT(apart.loss, 4 * narrow.unit_roundoff);
      EXPECT_LT(apart.weights, 3 * 2e-3 * std::sqrt(noise) / 0.1 + stored) << apart.worst_parameter;
      EXPECT_FALSE(apart.bitwise_equal);
      RecordProperty(fmt::format("{}_loss", narrow.name), fmt::format("{}", apart.loss));
      RecordProperty(fmt::format("{}_weights", narrow.name), fmt::format("{}", apart.weights));
    }
  }
}

}  // namespace
}  // namespace weft
