// Every remedy against every cause, and every strategy that a comparison names, for configurations that are drawn at
// random. The configuration's reader accepts each proposal.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"
#include "trainer/planning/compare.h"
#include "trainer/planning/explain.h"
#include "trainer/planning/remedies.h"

namespace weft {
namespace {

constexpr int accepted_runs = 100, planned_runs = 8;

struct Choice {
  const char* section;
  const char* key;
  std::vector<const char*> values;  // TOML
};

// Some draws contradict each other; these are refused and not counted.
const std::vector<Choice> choices = {
    {"model", "layers", {"\"d*4\"", "\"d*6\"", "\"e*4\"", "\"d e d e d e\"", "\"d*3 e*5\""}},
    {"model", "vocab_size", {"256"}},
    {"model", "hidden_size", {"32"}},
    {"model", "intermediate_size", {"64", "64", "48", "66"}},
    {"model", "num_attention_heads", {"12", "12", "24", "36"}},
    {"model", "num_key_value_heads", {"2", "4", "6", "12"}},
    {"model", "head_dim", {"8"}},
    {"model", "tie_word_embeddings", {"false", "false", "true"}},
    {"model.moe", "num_experts", {"8"}},
    {"model.moe", "num_experts_per_tok", {"2"}},
    {"model.moe", "moe_intermediate_size", {"32"}},
    {"parallelism", "pipeline", {"1", "1", "2", "3", "4"}},
    {"parallelism", "tensor", {"1", "1", "1", "2", "3"}},
    {"parallelism", "context", {"1", "1", "1", "2"}},
    {"parallelism", "data_shard", {"1", "2", "3", "4", "6", "8"}},
    {"parallelism", "data_replicate", {"1", "1", "1", "2", "4"}},
    {"parallelism", "expert", {"1", "1", "2", "4"}},
    {"parallelism", "expert_tensor", {"1", "1", "1", "2"}},
    {"pipeline",
     "schedule",
     {"\"1f1b\"\nchunks = 1", "\"1f1b\"\nchunks = 1", "\"gpipe\"\nchunks = 1", "\"zb_h1\"\nchunks = 1",
      "\"interleaved\"\nchunks = 2", "\"zbv\"\nchunks = 2"}},
    {"shard",
     "strategy",
     {"\"full_shard\"\nresidency = 2", "\"full_shard\"\naccumulation = \"sharded\"",
      "\"full_shard\"\nresidency = \"step\"",
      "\"full_shard\"\nresidency = \"window 2\"\nreduction = \"last_microbatch\"",
      "\"full_shard\"\nresidency = \"keep_after_forward\"\nreduction = \"every 3\"", "\"shard_grad_op\"",
      "\"shard_grad_op\"\nreduction = \"each_microbatch\"", "\"optimizer\"", "\"no_shard\""}},
    {"shard", "lookahead", {"0", "1", "1", "3"}},
    {"shard", "wrap", {"\"block\"", "\"block\"", "\"half_block\"", "\"blocks 2\"", "\"root\""}},
    {"shard", "reduce_inputs", {"0", "1", "1", "2"}},
    {"training", "sequence_length", {"32", "48", "6"}},
    {"training", "microbatch_size", {"1", "2", "4", "6"}},
    {"training", "global_batch_size", {"48", "96", "144"}},
    {"training", "recompute", {"\"none\"", "\"none\"", "\"selective\"", "\"full\""}},
    {"precision", "compute", {"\"float32\"", "\"bfloat16\""}},
    {"optimizer", "name", {"\"adamw\"", "\"adamw\"", "\"lion\"", "\"sgd\"", "\"muon\""}},
};

// Draws of one seed are the same on every machine and with every standard library.
std::string draw_text(std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::string text, section;
  for (const Choice& choice : choices) {
    if (section != choice.section) text += fmt::format("[{}]\n", choice.section);
    section = choice.section;
    text += fmt::format("{} = {}\n", choice.key, choice.values[engine() % choice.values.size()]);
  }
  return text;
}

// What the reader says against the words, or nothing.
std::string fault_of(const ReadWith& read, const Overrides& words) {
  return refusal_of([&] { read(words); }).value_or("");
}

class RandomRemedies : public ::testing::Test {
 protected:
  // Calls `judge` with configurations that the reader accepts.
  static void for_each_run(const std::function<void(const ReadWith& read, const Config& config)>& judge,
                           int runs = accepted_runs) {
    int accepted = 0, seed = 0;
    for (; accepted < runs && seed < 100 * accepted_runs; ++seed) {
      const std::string text = draw_text(static_cast<std::uint64_t>(seed));
      const ReadWith read = [&](const Overrides& words) { return read_config_text(text, "drawn.toml", words).config; };
      if (!fault_of(read, {}).empty()) continue;
      ++accepted;
      SCOPED_TRACE(fmt::format("seed {}:\n{}", seed, text));
      judge(read, read({}));
    }
    EXPECT_EQ(accepted, runs);
  }
};

// A card with memory for two thirds of the run.
Hardware small_card(const Config& config) {
  Hardware card = find_hardware("cpu");
  card.memory = Figure{1e15, "of this test"};
  card.memory->value = static_cast<double>(outline_run(config, card).verdict.needed) / 1.5;
  return card;
}

TEST_F(RandomRemedies, AreReadBackWithoutFault) {
  std::set<std::string_view> proposed;
  int fits = 0;
  for_each_run(
      [&](const ReadWith& read, const Config& config) {
        const Explanation explanation = explain_run(read, small_card(config));
        const auto expect_read = [&](const PlannedVariant& variant, std::string_view name) {
          EXPECT_EQ(variant.refused, "") << name;
          EXPECT_EQ(fault_of(read, variant.words), "")
              << name << ": " << fmt::format("{}", fmt::join(variant.words, " "));
        };
        for (const auto& list : {explanation.remedies, explanation.cannot}) {
          for (const TriedRemedy& tried : list) {
            proposed.insert(tried.remedy.name);
            expect_read(tried.variant, tried.remedy.name);
          }
        }
        if (const TriedRemedy* fastest = explanation.fastest_that_fits()) {
          ++fits;
          expect_read(fastest->variant, "fastest");
        }
        if (explanation.combination) expect_read(*explanation.combination, "combination");
        if (explanation.more_sharding) expect_read(*explanation.more_sharding, "more sharding");
        if (explanation.minimum_world) expect_read(explanation.minimum_world->variant, "fewest ranks");
      },
      planned_runs);
  EXPECT_GE(proposed.size(), 10u);
  EXPECT_GE(fits, 1);
}

// Only sizes that do not divide are left to the reader: a remedy that it refuses is listed apart, with its reason. No
// remedy has words that contradict the configuration, whatever the sizes. No reason names a key that does not exist.
TEST_F(RandomRemedies, ContradictNoOtherSetting) {
  int all = 0, by_size = 0;
  for_each_run([&](const ReadWith& read, const Config& config) {
    for (const Cause cause : all_values<Cause>) {
      for (const Remedy& remedy : remedies_for(cause)) {
        for (const RemedyOverrides& strength : remedy.strengths(config)) {
          ++all;
          const std::string fault = fault_of(read, strength.words);
          const auto says = [&](const char* part) { return fault.find(part) != std::string::npos; };
          EXPECT_FALSE(says("set microbatches") || says("or microbatches")) << fault;
          EXPECT_FALSE(says("write a divisor")) << fault;
          if (fault.empty()) continue;
          ++by_size;
          EXPECT_TRUE(says("not split") || says("not divide") || says("keeps parts") || says("microbatches"))
              << remedy.name << " " << fmt::format("{}", fmt::join(strength.words, " ")) << ": " << fault;
        }
      }
    }
  });
  EXPECT_GE(all, 10 * accepted_runs);
  EXPECT_LE(by_size, all / 10);
}

TEST_F(RandomRemedies, OfAComparisonAreReadBackWithoutFault) {
  for_each_run([&](const ReadWith& read, const Config& config) {
    for (const StrategyPlan& each : compare_strategies(config, hardware_of(config))) {
      if (each.refused.empty()) {
        EXPECT_EQ(fault_of(read, each.words), "") << name_of(each.sharding);
      }
    }
  });
}

}  // namespace
}  // namespace weft
