// One weight for embedding and head: wherever the two stand, a run learns what one rank learns, on which both add to
// one gradient. Where they stand on different stages each has a copy. After every step the copies are equal to the bit:
// `faults` of a run has every element of which holders differ (tiny_run.h).
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/text/text.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/layout_summary.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/rank/verify_step.h"
#include "trainer/resolve/config_rules.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/solved_timing.h"

namespace weft {
namespace {

// That of parity_test.cpp, for its reason: one more reordered sum of the same length.
constexpr double tied_tolerance = 1e-5;

std::vector<TinyLayout> tied_layouts() {
  const std::string mixed = "d e d e";
  const auto no_shard = ShardStrategy::no_shard;
  std::vector<TinyLayout> all = {
      {.name = "tp2", .degrees = {.tensor = 2}},
      {.name = "shard2", .degrees = {.data_shard = 2}},
      {.name = "shard2_root", .degrees = {.data_shard = 2}, .wrap = "root"},
      {.name = "replicate2_shard2", .degrees = {.data_replicate = 2, .data_shard = 2}},
      {.name = "ep2", .layers = "e*4", .degrees = {.data_shard = 2, .expert = 2}},
      {.name = "pp2", .layers = mixed, .degrees = {.pipeline = 2}},
      {.name = "pp4", .degrees = {.pipeline = 4}},
      {.name = "pp2_tp2", .degrees = {.pipeline = 2, .tensor = 2}},
      {.name = "pp2_no_shard", .degrees = {.pipeline = 2, .data_shard = 2}, .strategy = no_shard},
      {.name = "pp2_no_shard_each_microbatch",
       .degrees = {.pipeline = 2, .data_shard = 2},
       .reduction = "each_microbatch",
       .strategy = no_shard},
      {.name = "pp2_shard_grad_op",
       .degrees = {.pipeline = 2, .data_replicate = 2, .data_shard = 2},
       .residency = "step",
       .strategy = ShardStrategy::shard_grad_op,
       .accumulate_sharded = true},
      {.name = "pp2_mesh16",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_replicate = 2, .data_shard = 2, .tensor = 2, .expert = 2},
       .residency = "reshard_after_use"},
      {.name = "pp2_context2", .layers = mixed, .degrees = {.pipeline = 2, .context = 2}},
      {.name = "pp2_gpipe", .degrees = {.pipeline = 2}, .schedule = "gpipe"},
      {.name = "pp4_zb_h1", .degrees = {.pipeline = 4}, .schedule = "zb_h1"},
      {.name = "interleaved", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "interleaved"},
      {.name = "zbv", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}, .schedule = "zbv"},
      {.name = "zbv_no_shard", .degrees = {.pipeline = 2}, .schedule = "zbv", .strategy = no_shard},
      {.name = "dualpipev", .layers = "d*8", .degrees = {.pipeline = 4}, .schedule = "dualpipev"},
      {.name = "looped_bfs", .degrees = {.pipeline = 2}, .schedule = "looped_bfs"},
  };
  for (TinyLayout& layout : all) {
    layout.tied = true;
    const bool many = layout.schedule == "interleaved" || layout.schedule == "zbv" || layout.schedule == "dualpipev" ||
                      layout.schedule == "looped_bfs";
    if (many) layout.chunks = 2;
  }
  return all;
}

void expect_learned(const Config& config, const LearnedRun& one) {
  const LearnedRun many = learn(config);
  EXPECT_TRUE(many.faults.empty()) << many.faults.front() << " and " << many.faults.size() - 1 << " more";
  const RunDifference apart = difference(many, one);
  EXPECT_LT(apart.loss, tied_tolerance);
  EXPECT_LT(apart.gradient_norm, tied_tolerance);
  EXPECT_LT(apart.weights, tied_tolerance) << apart.worst_parameter;
}

class TiedParity : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(TiedParity, EqualsOneRank) {
  const LearnedRun one = learn(config_of({.layers = GetParam().layers, .tied = true}));
  expect_learned(config_of(GetParam()), one);
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.05);
  EXPECT_FALSE(one.weights.contains("head.weight"));
}

TEST_P(TiedParity, IsOwnedOnceInEachCopy) {
  const Config config = config_of(GetParam());
  const Mesh mesh(config.parallelism);
  const auto parameters = global_parameters(config, mesh);
  EXPECT_EQ(parameters.size(), model_parameters(config.model).size());
  EXPECT_NO_THROW(require_sound_ownership(owner_table(config, mesh), parameters));
  Config untied = config;
  untied.model.tie_word_embeddings = false;
  const auto copies = [](const std::vector<GlobalParameter>& all) {
    const auto found =
        std::ranges::find_if(all, [](const GlobalParameter& one) { return one.name == "embedding.weight"; });
    return found->replicas;
  };
  EXPECT_EQ(copies(parameters), copies(global_parameters(untied, mesh)) * (config.stages() > 1 ? 2 : 1));
}

INSTANTIATE_TEST_SUITE_P(Layouts, TiedParity, ::testing::ValuesIn(tied_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// Rules that need more of a parameter than its elements. LAMB takes norms of the weight, and must not count the head's
// copy. Muon takes the matrices between, and its plan those of a stage.
TEST(TiedRules, StepBothCopiesAlike) {
  for (const UpdateRule rule : {UpdateRule::lamb, UpdateRule::muon, UpdateRule::lion}) {
    SCOPED_TRACE(name_of(rule));
    const auto configured = [&](const TinyLayout& layout) {
      Config config = config_of(layout);
      config.optimizer.rule = rule;
      // A sign that noise decides moves by a whole step; such a run is compared where no sum is reordered.
      if (rule == UpdateRule::lion) config.optimizer.learning_rate = 0.0;
      return config;
    };
    const LearnedRun one = learn(configured({.layers = "d e d e", .tied = true}));
    for (const std::string schedule : {"1f1b", "zbv"}) {
      SCOPED_TRACE(schedule);
      expect_learned(configured({.layers = "d e d e",
                                 .degrees = {.pipeline = 2, .data_shard = 2},
                                 .schedule = schedule,
                                 .chunks = schedule == "zbv" ? 2 : 1,
                                 .tied = true}),
                     one);
    }
  }
}

// What both copies are rounded to is decided by name and element, not by where they are.
TEST(TiedRules, RoundBothCopiesAlike) {
  Config config = config_of({.layers = "d e d e",
                             .degrees = {.pipeline = 2, .data_shard = 2},
                             .precision = {DType::bfloat16, DType::bfloat16, DType::bfloat16},
                             .tied = true});
  const LearnedRun run = learn(config);
  EXPECT_TRUE(run.faults.empty()) << run.faults.front() << " and " << run.faults.size() - 1 << " more";
  EXPECT_LT(run.losses.back(), run.losses.front());
}

// The text has no byte twice in a window, so that a row of the embedding has one addition a microbatch. The sum of both
// ends is the same in either order. Then a pipeline over the same data ranks rounds what they round without one, and
// learns the same to the bit.
TEST(TiedRules, RoundTheSumOfBothCopiesOnce) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('0' + i % 61);
  write_file(folder / "text", text);
  const auto configured = [&](DType reduction, const Degrees& degrees, const std::string& schedule) {
    Config config = config_of({.layers = "d e",
                               .degrees = degrees,
                               .schedule = schedule,
                               .precision = {DType::float32, DType::float32, reduction},
                               .tied = true});
    config.data.train = {(folder / "text").string()};
    config.training.global_batch_size = 2;
    config.training.max_grad_norm = 0.0;
    return config;
  };
  for (const DType reduction : {DType::bfloat16, DType::float16}) {
    SCOPED_TRACE(name_of(reduction));
    const LearnedRun one = learn(configured(reduction, {.data_shard = 2}, "1f1b"));
    for (const std::string schedule : {"1f1b", "zb_h1"}) {
      const LearnedRun two = learn(configured(reduction, {.pipeline = 2, .data_shard = 2}, schedule));
      EXPECT_TRUE(two.faults.empty());
      EXPECT_EQ(two.weights.at("embedding.weight"), one.weights.at("embedding.weight"));
      EXPECT_LT(difference(two, one).gradient_norm, 1e-12);
    }
  }
}

// A scale at which gradients overflow at first: the steps that are left out are those that one rank leaves out.
TEST(TiedRules, SkipTheStepsThatOneRankSkips) {
  const auto skipped = [](const Degrees& degrees) {
    Config config = config_of({.layers = "d",
                               .degrees = degrees,
                               .precision = {DType::float32, DType::float32, DType::float16},
                               .tied = true});
    config.model.hidden_size = 16;
    config.model.vocab_size = 256;
    config.run.steps = 12;
    config.training.initial_loss_scale = 0x1p20;
    std::vector<bool> steps;
    for (const StepMetrics& step : learn(config).result.steps) steps.push_back(step.skipped);
    return steps;
  };
  const std::vector<bool> one = skipped({});
  EXPECT_GT(std::ranges::count(one, true), 0);
  EXPECT_LT(std::ranges::count(one, true), 12);
  EXPECT_EQ(skipped({.pipeline = 2}), one);
}

// Reduced several times a step, or when a plan says so, the sum of both copies would be rounded more than once.
TEST(TiedRules, RefuseToRoundTwice) {
  const auto faults = [](const ShardPolicy& policy, DType reduction) {
    Config config = config_of({.degrees = {.pipeline = 2, .data_shard = 2}, .tied = true});
    config.precision.reduction = reduction;
    for (auto& [family, each] : config.shard_by_family) each = policy;
    std::string all;
    for (const ConfigRule& rule : tied_rules()) {
      for (const std::string& fault : rule.check(config)) all += fault + "\n";
    }
    return all;
  };
  ShardPolicy each, sharded, automatic;
  each.reduction = {ReductionKind::each_microbatch};
  sharded.accumulation = Accumulation::sharded;
  automatic.residency = {Residency::solved};
  for (const auto& [policy, part] : {std::pair(each, "reduction \"last_microbatch\""),
                                     {sharded, "accumulation \"sharded\""},
                                     {automatic, "residency \"auto\""}}) {
    EXPECT_NE(faults(policy, DType::bfloat16).find(part), std::string::npos) << faults(policy, DType::bfloat16);
    EXPECT_EQ(faults(policy, DType::float32), "");
  }
  EXPECT_EQ(faults({}, DType::bfloat16), "");
}

// Frozen, the copies are never given a gradient, and nothing ties them.
TEST(TiedRules, FreezeBothCopies) {
  const TinyLayout layout{.degrees = {.pipeline = 2}, .frozen = {Family::embedding, Family::head}, .tied = true};
  const Config config = config_of(layout);
  const Program program = step_program(ResolvedRun(config), {});
  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) EXPECT_NE(action.op, Op::tie_gradient);
  }
  TinyLayout alone = layout;
  alone.degrees = {};
  expect_learned(config, learn(config_of(alone)));
}

// Solved timing decides when a unit is reduced, and the sum of the copies comes behind.
TEST(TiedTiming, LearnsWhatOthersLearn) {
  for (const std::string schedule : {"1f1b", "zbv"}) {
    SCOPED_TRACE(schedule);
    TinyLayout layout{.layers = "d e d e",
                      .degrees = {.pipeline = 2, .data_shard = 2},
                      .schedule = schedule,
                      .residency = "auto",
                      .reduction = "auto",
                      .chunks = schedule == "zbv" ? 2 : 1,
                      .tied = true};
    Config config = config_of(layout);
    config.memory_budget = std::int64_t{1} << 30;
    expect_learned(config, learn(config_of({.layers = layout.layers, .tied = true})));
  }
}

// --- plans ----------------------------------------------------------------------------------------------------------

std::map<Op, int> ties_of(const Program& program, int rank) {
  std::map<Op, int> count;
  for (const Action& action : program.ranks[static_cast<std::size_t>(rank)]) ++count[action.op];
  return count;
}

const ProgramUnit& unit_of(const Program& program, std::string_view name) {
  return *std::ranges::find_if(program.units, [&](const ProgramUnit& unit) { return unit.name == name; });
}

TEST(TiedPlan, HasACopyOnEachStageAndOneTieEach) {
  const Config config = config_of({.degrees = {.pipeline = 4, .data_shard = 2, .tensor = 2}, .tied = true});
  const Program program = step_program(ResolvedRun(config), {});
  const ProgramUnit &first = unit_of(program, "embedding"), &last = unit_of(program, "head.embedding");
  EXPECT_EQ(first.stage, 0);
  EXPECT_EQ(last.stage, 3);
  EXPECT_EQ(program.units[static_cast<std::size_t>(first.copies.back())].name, last.name);
  EXPECT_EQ(program.units[static_cast<std::size_t>(last.copies.front())].name, first.name);
  // 259 rows over 2 tensor ranks are 130 on the first; over 2 shards 65 rows of 20 elements of float32.
  EXPECT_EQ(first.tie_bytes, 65 * 20 * 4);
  EXPECT_EQ(last.tie_bytes, first.tie_bytes);
  for (int rank : {0, 1, 2, 3}) EXPECT_EQ(ties_of(program, rank)[Op::tie_gradient], rank == 0 || rank == 3 ? 1 : 0);
}

TEST(TiedPlan, OnOneRankSumsItsCopiesWithoutAMessage) {
  const Config config = config_of({.degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2, .tied = true});
  const Program program = step_program(ResolvedRun(config), {});
  EXPECT_EQ(unit_of(program, "embedding").tie_bytes, 0);
  EXPECT_EQ(ties_of(program, 0)[Op::tie_gradient], 1);
  EXPECT_EQ(ties_of(program, 1)[Op::tie_gradient], 0);
}

TEST(TiedPlan, OnOneStageIsOneUnitOfBothEnds) {
  const Config config = config_of({.degrees = {.data_shard = 2}, .tied = true});
  const Program program = step_program(ResolvedRun(config), {});
  const auto embedding = static_cast<int>(&unit_of(program, "embedding") - program.units.data());
  EXPECT_TRUE(program.units[static_cast<std::size_t>(embedding)].copies.empty());
  EXPECT_EQ(program.segments.front().units, std::vector<int>{embedding});
  EXPECT_EQ(std::ranges::count(program.segments.back().units, embedding), 1);
  EXPECT_EQ(ties_of(program, 0)[Op::tie_gradient], 0);
}

// The weight is one of the model's parameters once, and one of a stage's wherever the stage has a copy.
TEST(TiedPlan, CountsTheWeightOnce) {
  const Config tied = config_of({.degrees = {.pipeline = 2}, .tied = true}),
               untied = config_of({.degrees = {.pipeline = 2}});
  const std::int64_t weight = tied.model.vocab_size * tied.model.hidden_size;
  EXPECT_EQ(count_parameters(tied.model).total, count_parameters(untied.model).total - weight);
  const LayoutSummary with = summarize_layout(tied), without = summarize_layout(untied);
  for (std::size_t stage : {0u, 1u}) {
    EXPECT_EQ(with.stages[stage].parameters, without.stages[stage].parameters);
    EXPECT_EQ(with.stages[stage].parameter_bytes, without.stages[stage].parameter_bytes);
  }
  Config one = tied, one_untied = untied;
  one.parallelism = one_untied.parallelism = {};
  EXPECT_EQ(summarize_layout(one).stages[0].parameters, summarize_layout(one_untied).stages[0].parameters - weight);
  const LayoutItems items = modelled_items(tied), untied_items = modelled_items(untied);
  EXPECT_EQ(items.embedding.resident_bytes, untied_items.embedding.resident_bytes);
  EXPECT_EQ(items.head.resident_bytes, untied_items.head.resident_bytes);
}

}  // namespace
}  // namespace weft
