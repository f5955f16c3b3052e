// Every remedy against every cause, and every strategy that a comparison names, proposed for configurations that are
// drawn at random: the configuration's reader accepts each proposal.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <random>
#include <set>

#include "parallel/runtime/refusal.h"
#include "trainer/planning/compare.h"
#include "trainer/planning/explain.h"
#include "trainer/planning/remedies.h"

namespace weft {
namespace {

constexpr int accepted_runs = 100;

constexpr const char* base = R"([model]
layers = "d*4"
vocab_size = 64
hidden_size = 32
intermediate_size = 64
num_attention_heads = 4
num_key_value_heads = 4
head_dim = 8
[model.moe]
num_experts = 8
num_experts_per_tok = 2
moe_intermediate_size = 32
[training]
sequence_length = 32
global_batch_size = 48
[data]
train = ["nothing is read"]
)";

// Draws are the same on every machine and with every standard library.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::string operator()(const char* key, std::initializer_list<const char*> values) {
    return word(key, values.begin()[engine_() % values.size()]);
  }

 private:
  std::mt19937_64 engine_;
};

Overrides draw_words(std::uint64_t seed) {
  Draw draw(seed);
  Overrides words = {
      draw("model.layers", {"d*4", "d*6", "e*4", "d e d e d e", "d*3 e*5"}),
      draw("model.num_attention_heads", {"4", "4", "6", "12"}),
      draw("model.num_key_value_heads", {"1", "2", "2", "3", "4", "6"}),
      draw("model.num_experts", {"8"}),
      draw("model.vocab_size", {"64", "63"}),
      draw("model.intermediate_size", {"64", "64", "48", "66"}),
      draw("parallelism.pipeline", {"1", "1", "2", "3", "4"}),
      draw("parallelism.tensor", {"1", "1", "1", "2", "3"}),
      draw("parallelism.context", {"1", "1", "1", "2"}),
      draw("parallelism.data_shard", {"1", "2", "3", "4", "6", "8"}),
      draw("parallelism.data_replicate", {"1", "1", "1", "2", "4"}),
      draw("parallelism.expert", {"1", "1", "2", "4"}),
      draw("parallelism.expert_tensor", {"1", "1", "1", "2"}),
      draw("pipeline.schedule", {"1f1b", "1f1b", "gpipe", "interleaved", "zb_h1", "zbv"}),
      draw("pipeline.chunks", {"1", "1", "2"}),
      draw("shard.strategy", {"full_shard", "full_shard", "full_shard", "shard_grad_op", "optimizer", "no_shard"}),
      draw("shard.residency", {"stage", "stage", "reshard_after_use", "keep_after_forward", "window 2", "step", "2"}),
      draw("shard.reduction", {"auto", "auto", "last_microbatch", "each_microbatch", "every 3"}),
      draw("shard.accumulation", {"unsharded", "unsharded", "unsharded", "sharded"}),
      draw("shard.lookahead", {"0", "1", "1", "3"}),
      draw("shard.wrap", {"block", "block", "half_block", "blocks 2", "root"}),
      draw("shard.reduce_inputs", {"0", "1", "1", "2"}),
      draw("training.sequence_length", {"32", "48", "6"}),
      draw("training.microbatch_size", {"1", "2", "4", "6"}),
      draw("training.global_batch_size", {"48", "96", "144"}),
      draw("training.recompute", {"none", "none", "selective", "full"}),
      draw("precision.compute", {"float32", "bfloat16"}),
      draw("optimizer.name", {"adamw", "adamw", "lion", "sgd", "muon"}),
      draw("run.device", {"cpu", "cpu", "cuda"}),
      draw("run.launch", {"threads"}),
      draw("model.tie_word_embeddings", {"false", "false", "true"}),
  };
  std::erase_if(words, [](const std::string& one) { return one.starts_with("--model.num_experts"); });
  return words;
}

// What the reader says against the words, or nothing.
std::string fault_of(const ReadWith& read, const Overrides& words) {
  return refusal_of([&] { read(words); }).value_or("");
}

class RandomRemedies : public ::testing::Test {
 protected:
  // Calls `judge` with 100 configurations that the reader accepts, and returns the number of draws.
  static int for_each_run(const std::function<void(const ReadWith& read, const Config& config)>& judge) {
    int accepted = 0, seed = 0;
    for (; accepted < accepted_runs && seed < 100 * accepted_runs; ++seed) {
      const Overrides given = draw_words(static_cast<std::uint64_t>(seed));
      const ReadWith read = [given](const Overrides& words) {
        return read_config_text(base, "drawn.toml", merged_words(given, words)).config;
      };
      if (!fault_of(read, {}).empty()) continue;
      ++accepted;
      SCOPED_TRACE(fmt::format("seed {}: {}", seed, fmt::join(given, " ")));
      judge(read, read({}));
    }
    EXPECT_EQ(accepted, accepted_runs);
    return seed;
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
  for_each_run([&](const ReadWith& read, const Config& config) {
    const Explanation explanation = explain_run(read, small_card(config));
    const auto expect_read = [&](const Trial& trial, std::string_view name) {
      EXPECT_EQ(trial.refused, "") << name;
      EXPECT_EQ(fault_of(read, trial.words), "") << name << ": " << fmt::format("{}", fmt::join(trial.words, " "));
    };
    for (const auto& list : {explanation.remedies, explanation.cannot}) {
      for (const TriedRemedy& tried : list) {
        proposed.insert(tried.remedy.name);
        expect_read(tried.trial, tried.remedy.name);
      }
    }
    if (const TriedRemedy* fastest = explanation.fastest_that_fits()) {
      ++fits;
      expect_read(fastest->trial, "fastest");
    }
    if (explanation.combination) expect_read(*explanation.combination, "combination");
    if (explanation.more_sharding) expect_read(*explanation.more_sharding, "more sharding");
    if (explanation.minimum_world) expect_read(explanation.minimum_world->trial, "fewest ranks");
  });
  EXPECT_GE(proposed.size(), 20u);
  EXPECT_GE(fits, accepted_runs / 2);
}

// Of all strengths of all remedies, against every cause: the refused ones by reason.
TEST_F(RandomRemedies, DISABLED_Strengths) {
  std::map<std::string, int> refused;
  int all = 0;
  for_each_run([&](const ReadWith& read, const Config& config) {
    for (std::size_t c = 0; c < cause_count; ++c) {
      for (const Remedy& remedy : remedies_for(static_cast<Cause>(c))) {
        for (const RemedyOverrides& strength : remedy.strengths(config)) {
          ++all;
          const std::string fault = fault_of(read, strength.words);
          if (!fault.empty()) ++refused[fmt::format("{} {}: {}", remedy.name, fmt::join(strength.words, " "), fault)];
        }
      }
    }
  });
  for (const auto& [reason, times] : refused) fmt::print("{} x {}\n", times, reason);
  fmt::print("{} in all\n", all);
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
