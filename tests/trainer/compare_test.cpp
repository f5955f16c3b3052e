// Ways to share the state of LLaMA-2 7B on two nodes of eight, against figures worked out by hand from the shapes
// alone. There are 32 blocks of 202,383,360 parameters, an embedding and a head of 131,072,000 each, a final norm of
// 4,096. In float32, with gradient and two moments, a parameter takes 16 bytes. Gathers are in bfloat16. Nothing is
// allocated.
//
// Where the known table of these figures has others, the difference is derived. It gathers every parameter twice under
// full_shard. Here the backward of the embedding reads no parameters, and that of the head follows its forward at once.
// Both are therefore gathered once (524 MB less). The embedding is dropped after its last use, the forward.
#include "trainer/planning/compare.h"

#include <gtest/gtest.h>

#include <bit>

#include "parallel/runtime/error.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

constexpr double block = 202'383'360, vocabulary = 131'072'000, parameters = 32 * block + 2 * vocabulary + 4096;
constexpr double width = 2;  // bytes of what is gathered
// Shards are of whole rows: less than one of 4,096 elements is added to each of 16 shards of each of 35 units.
constexpr double padding_elements = 35.0 * 16 * 4096;

Config seven_billion(Overrides overrides = {}) {
  overrides.push_back("--hardware.reached=0.404285");  // 400 TFLOP/s
  return read_config(WEFT_SOURCE_DIR "/configs/plan_7b_2_nodes.toml", overrides).config;
}

std::vector<StrategyPlan> compared(const Config& config) {
  return compare_strategies(config, hardware_of(config));
}
const StrategyPlan& at(const std::vector<StrategyPlan>& plans, Sharding sharding) {
  for (const StrategyPlan& each : plans) {
    if (each.sharding == sharding) return each;
  }
  throw std::runtime_error("not compared");
}

struct Figures {
  Sharding sharding;
  double state, full, sent, egress;  // bytes
  double table_sent, table_egress;   // of the table
};

// By collectives of rings, with gradients reduced in `reduced` bytes an element.
std::vector<Figures> figures(double reduced) {
  const double m = parameters * width, r = parameters * reduced;
  const double twice = 2 * 32 * block * width + (2 * vocabulary + 4096) * width;  // gathered under full_shard
  const double root = 2 * vocabulary * width;
  const double of16 = 15.0 / 16, of8 = 7.0 / 8;
  const double shard = 16 * parameters / 16;
  const double kept = (32 - 2) * block * width / 8;  // parts of an island, but of the two blocks that are whole
  // In an all-reduce over two nodes a rank sends its shard once; eight ranks of a node do.
  return {
      {Sharding::full_shard, shard, 2 * block * width, of16 * (twice + r), of16 * (twice + r), of16 * (2 * m + r),
       of16 * (2 * m + r)},
      {Sharding::shard_grad_op, shard, m - vocabulary * width, of16 * (m + r), of16 * (m + r), of16 * (m + r),
       of16 * (m + r)},
      {Sharding::optimizer, shard, m - vocabulary * width, of16 * (m + r), of16 * (m + r), of16 * (m + r),
       of16 * (m + r)},
      {Sharding::hybrid, 2 * shard, 2 * block * width, of8 * (twice + r) + r / 8, r, of8 * (2 * m + r) + r / 8, r},
      {Sharding::hybrid_shard_grad_op, 2 * shard, m - vocabulary * width, of8 * (m + r) + r / 8, r,
       of8 * (m + r) + r / 8, r},
      {Sharding::island, shard, 2 * block * width + kept, of16 * (m + r) + of8 * (m - root), of16 * (m + r),
       of16 * (m + r) + of8 * m, of16 * (m + r)},
      // Copies are made a unit at a time, where the last block and the head meet; the table makes all of them.
      {Sharding::no_shard, 16 * parameters, (block + vocabulary) * width, of16 * 2 * r, of16 * 2 * r, of16 * 2 * r,
       of16 * 2 * r},
  };
}

TEST(CompareStrategies, HaveTheFiguresOfSevenBillionOnTwoNodes) {
  for (const double reduced : {2.0, 4.0}) {
    const auto plans =
        compared(seven_billion({reduced == 2.0 ? "--precision.reduction=bfloat16" : "--precision.reduction=float32"}));
    ASSERT_EQ(plans.size(), 8u);  // with what Weft chose for the configuration
    EXPECT_EQ(plans.front().sharding, Sharding::as_configured);
    for (const Figures& expected : figures(reduced)) {
      const StrategyPlan& found = at(plans, expected.sharding);
      SCOPED_TRACE(fmt::format("{}, reduced in {} bytes", name_of(expected.sharding), reduced));
      ASSERT_TRUE(found.plan);
      const double traffic = 4 * 2 * 4.0 * padding_elements + 1e4;  // of gathers and reductions, and of a few sums
      EXPECT_NEAR(static_cast<double>(found.state_bytes), expected.state, 16 * padding_elements / 8);
      EXPECT_NEAR(static_cast<double>(found.full_parameter_bytes), expected.full, width * padding_elements);
      EXPECT_NEAR(static_cast<double>(found.plan->sent_bytes()), expected.sent, traffic);
      EXPECT_NEAR(found.plan->node_egress_bytes, expected.egress, traffic);
      EXPECT_DOUBLE_EQ(found.egress_seconds, found.plan->node_egress_bytes / 25e9);
      // The table is off by no more than the root, gathered once more (over 16 ranks, or 8 of a node).
      const double root = 2 * vocabulary * width;
      const bool again = expected.sharding == Sharding::full_shard || expected.sharding == Sharding::hybrid;
      const bool inside = expected.sharding == Sharding::island || expected.sharding == Sharding::hybrid;
      EXPECT_NEAR(expected.table_sent - static_cast<double>(found.plan->sent_bytes()),
                  (again || inside ? root : 0.0) * (inside ? 7.0 / 8 : 15.0 / 16), traffic + 1e4);
      EXPECT_NEAR(expected.table_egress - found.plan->node_egress_bytes,
                  expected.sharding == Sharding::full_shard ? root * 15 / 16 : 0.0, traffic + 1e4);
    }
  }
}

// The figures of the table as it is written, by the formulas that the test above holds the plans to.
TEST(CompareStrategies, MeetTheTable) {
  const auto narrow = figures(2.0), wide = figures(4.0);
  const double sent[][2] = {
      {37.9, 50.5}, {25.3, 37.9}, {25.3, 37.9}, {35.4 + 1.69, 47.2 + 3.37}, {0, 0}, {25.3 + 11.8, 37.9 + 11.8},
      {25.3, 50.5}};
  const double seconds[][2] = {{1.52, 2.02}, {1.01, 1.52}, {1.01, 1.52}, {0.54, 1.08},
                               {0.54, 1.08}, {1.01, 1.52}, {1.01, 2.02}};
  const double state[] = {6.74, 6.74, 6.74, 13.48, 13.48, 6.74, 107.8};
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    SCOPED_TRACE(name_of(narrow[i].sharding));
    EXPECT_NEAR(narrow[i].state / 1e9, state[i], 0.05);
    EXPECT_NEAR(narrow[i].table_egress / 25e9, seconds[i][0], 0.005);
    EXPECT_NEAR(wide[i].table_egress / 25e9, seconds[i][1], 0.005);
    if (sent[i][0] == 0) continue;
    EXPECT_NEAR(narrow[i].table_sent / 1e9, sent[i][0], 0.1);  // a sum of two rounded figures
    EXPECT_NEAR(wide[i].table_sent / 1e9, sent[i][1], 0.1);
  }
}

TEST(CompareStrategies, BreakEvenWhereTrafficTakesAsLongAsProducts) {
  const double full = 3 * width * parameters * 15 / 16, hybrid = width * parameters;
  EXPECT_NEAR(break_even_tokens(full, 25e9, parameters, 400e12), 15000, 1e-6);
  EXPECT_NEAR(break_even_tokens(hybrid, 25e9, parameters, 400e12), 5333, 0.5);
  EXPECT_NEAR(break_even_tokens(full, 50e9, parameters, 400e12), 7500, 1e-6);
  EXPECT_NEAR(break_even_tokens(hybrid, 50e9, parameters, 400e12), 2667, 0.5);
  EXPECT_NEAR(break_even_tokens(full, 400e9, parameters, 400e12), 938, 0.51);
  EXPECT_NEAR(break_even_tokens(hybrid, 400e9, parameters, 400e12), 333, 0.5);
  // What is planned: the root once less, and padding.
  const auto plans = compared(seven_billion());
  EXPECT_NEAR(at(plans, Sharding::full_shard).break_even, 15000 * (1 - 2 * vocabulary / (3 * parameters)), 6);
  EXPECT_NEAR(at(plans, Sharding::hybrid).break_even, 5333.3, 2);
}

Sharding chosen_for(const Config& config) {
  const auto plans = compared(config);
  const Recommendation advice = recommend(plans, hardware_of(config));
  EXPECT_TRUE(advice.chosen);
  EXPECT_FALSE(advice.reasons.empty());
  // The configuration's own full_shard gathers its root once a microbatch less than that of the table.
  const Sharding sharding = plans.at(*advice.chosen).sharding;
  return sharding == Sharding::as_configured ? Sharding::full_shard : sharding;
}

TEST(Recommendation, IsTheKnownDecisionOnTwoNodes) {
  const auto chosen = [](const char* reduction, const char* rate) {
    return chosen_for(seven_billion({fmt::format("--precision.reduction={}", reduction),
                                     fmt::format("--hardware.node_bytes_per_second={}", rate)}));
  };
  EXPECT_EQ(chosen("bfloat16", "25e9"), Sharding::hybrid);
  EXPECT_EQ(chosen("bfloat16", "50e9"), Sharding::hybrid);
  EXPECT_EQ(chosen("bfloat16", "400e9"), Sharding::full_shard);
  EXPECT_EQ(chosen("float32", "25e9"), Sharding::hybrid);
  // Here an island hides too, and takes 5 GB less. 12.6 GB of gathers take 0.25 s of 0.28 s forward, 25.3 GB of
  // reductions 0.51 s of 0.55 s backward. The hybrid is the fastest, by less than 1 %.
  EXPECT_EQ(chosen("float32", "50e9"), Sharding::island);
  EXPECT_EQ(chosen("float32", "400e9"), Sharding::full_shard);
  // Long context: activations take what the hybrid needs for its state.
  const Config longer = seven_billion({"--training.sequence_length=8192"});
  const auto plans = compared(longer);
  EXPECT_FALSE(at(plans, Sharding::hybrid).fits());
  EXPECT_EQ(chosen_for(longer), Sharding::full_shard);
  // Never: 107.8 GB alone.
  EXPECT_EQ(at(plans, Sharding::no_shard).plan->verdict.fit, Fit::exceeds);
}

TEST(Recommendation, IsTheKnownDecisionOnOneNode) {
  const Overrides node = {"--parallelism.data_shard=8", "--training.global_batch_size=16"};
  EXPECT_EQ(chosen_for(seven_billion(node)), Sharding::shard_grad_op);
  Overrides billion = node;
  for (const char* word : {"--model.layers=d*16", "--model.hidden_size=2048", "--model.num_attention_heads=16",
                           "--model.num_key_value_heads=16", "--model.intermediate_size=8192"}) {
    billion.emplace_back(word);
  }
  EXPECT_EQ(chosen_for(seven_billion(billion)), Sharding::no_shard);
}

TEST(Recommendation, SaysWhichTermDecides) {
  const Config config = seven_billion();
  const auto plans = compared(config);
  const Recommendation advice = recommend(plans, hardware_of(config));
  std::string text;
  for (const std::string& reason : advice.reasons) text += reason + "\n";
  for (const std::string& flip : advice.flips) text += flip + "\n";
  // 37.41 / 13.48 GB; the table's 2.81 gathers the root twice. Computation is 0.83 s of 6 operations a parameter and
  // token, without the rows of the embedding, and with the scores of attention: 12 x 32 x 4096 x 2048 operations.
  for (const char* part :
       {"hybrid: ", "takes 1.50 s and the computation 0.88 s: it cannot be hidden", "2.78 times fewer",
        "no_shard does not fit", "its state alone takes 107.8 GB", "at 42.6 GB/s"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
  }
  // A card of the size that is told holds the strategy with the timing that it has.
  const std::string told = text.substr(text.find("on cards of ") + 12);
  Config hybrid = at(plans, Sharding::hybrid).config;
  hybrid.hardware.memory = static_cast<std::int64_t>(std::stod(told) * 0x1p30);
  EXPECT_TRUE(plan_run(hybrid, hardware_of(hybrid)).verdict.fits()) << told;
  hybrid.hardware.memory = static_cast<std::int64_t>((std::stod(told) - 0.1) * 0x1p30);
  EXPECT_FALSE(plan_run(hybrid, hardware_of(hybrid)).verdict.fits()) << told;
  // No step is shorter than what leaves a node takes.
  for (const StrategyPlan& each : plans) EXPECT_GE(each.seconds, each.egress_seconds);
}

TEST(Recommendation, KnowsTheLongestSequence) {
  Config config = seven_billion();
  const Hardware hardware = hardware_of(config);
  config = at(compared(config), Sharding::hybrid).config;
  const auto longest = longest_sequence(config, hardware);
  ASSERT_TRUE(longest);
  config.training.sequence_length = *longest;
  EXPECT_TRUE(plan_run(config, hardware).verdict.fits());
  config.training.sequence_length = *longest + 4096 / 8;
  EXPECT_FALSE(plan_run(config, hardware).verdict.fits());
}

// Each length is solved for by itself: with the timing of another, less fits than there is room for.
TEST(Recommendation, KnowsTheLongestSequenceOfASolvedRun) {
  Config config = config_of({.layers = "d e d e d e d e",
                             .degrees = {.data_shard = 2, .expert = 2},
                             .residency = "auto",
                             .reduction = "auto"});
  config.hardware.ranks_per_node = 2;
  config.training.sequence_length = 16;
  Hardware hardware = hardware_of(config);
  hardware.reserved_memory.value = 0.0;
  config.memory_budget = std::int64_t{1} << 40;
  const std::int64_t short_peak = plan_run(config, hardware).peak().total();
  config.training.sequence_length = 128;
  const std::int64_t long_peak = plan_run(config, hardware).peak().total();
  config.training.sequence_length = 16;
  config.memory_budget = (short_peak + long_peak) / 2;
  hardware.memory = Figure{.value = static_cast<double>(*config.memory_budget) / Verdict::limit};
  const auto longest = longest_sequence(config, hardware);
  ASSERT_TRUE(longest);
  EXPECT_GT(*longest, 16);
  const std::int64_t eighth = std::int64_t{1} << (std::bit_width(static_cast<std::uint64_t>(*longest)) - 4);
  config.training.sequence_length = *longest;
  EXPECT_TRUE(plan_run(config, hardware).verdict.fits()) << *longest;
  config.training.sequence_length = *longest + eighth;
  const auto refused = refusal_of([&] { EXPECT_FALSE(plan_run(config, hardware).verdict.fits()) << *longest; });
  EXPECT_TRUE(!refused || refused->find("memory_budget") != std::string::npos) << *refused;
}

// What is printed to be typed makes what was planned.
TEST(CompareStrategies, AreMadeByTheirWords) {
  for (const Overrides& given : {Overrides{},
                                 Overrides{"--shard.strategy=optimizer", "--parallelism.data_replicate=4",
                                           "--parallelism.data_shard=4", "--shard.lookahead=2"},
                                 Overrides{"--shard.residency=8", "--shard.accumulation=sharded"},
                                 Overrides{"--shard.embedding.residency=step"}}) {
    for (const StrategyPlan& each : compared(seven_billion(given))) {
      Overrides words = given;
      for (const std::string& word : each.words) {
        const std::string key = word.substr(0, word.find('=') + 1);
        std::erase_if(words, [&](const std::string& old) { return old.starts_with(key); });
        words.push_back(word);
      }
      const Config made = seven_billion(words);
      EXPECT_EQ(made.parallelism, each.config.parallelism) << name_of(each.sharding);
      EXPECT_EQ(made.shard, each.config.shard) << name_of(each.sharding);
      EXPECT_EQ(made.shard_by_family, each.config.shard_by_family) << name_of(each.sharding);
    }
  }
}

TEST(CompareStrategies, RefuseByName) {
  const auto one_node = compared(seven_billion({"--parallelism.data_shard=8"}));
  EXPECT_EQ(at(one_node, Sharding::hybrid).refused, "all 8 data ranks of a stage are in one node: it is full_shard");
  EXPECT_FALSE(at(one_node, Sharding::island).plan);

  Config config = config_of({.degrees = {.pipeline = 2, .data_shard = 6}});
  config.training.global_batch_size = 12;
  Hardware hardware = find_hardware("h100");
  hardware.ranks_per_node.value = 4;
  EXPECT_EQ(at(compare_strategies(config, hardware), Sharding::hybrid).refused,
            "6 data ranks do not fill nodes that hold 4 of them; nearest: data_replicate x data_shard = 4 or 8");
  config.parallelism = {};
  const auto alone = compare_strategies(config, hardware);
  EXPECT_EQ(at(alone, Sharding::full_shard).refused, "one data rank has nothing to share: it is no_shard");
  EXPECT_TRUE(at(alone, Sharding::no_shard).plan);
  // Ranks that do not fill nodes have no plan at all.
  config.parallelism.data_shard = 6;
  try {
    compare_strategies(config, hardware);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("take 4 or 8 ranks"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace weft
