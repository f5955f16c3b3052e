#include <gtest/gtest.h>

#include "tests/trainer/config_sample.h"

namespace weft {
namespace {

using config_sample::complete;
using config_sample::message;
using config_sample::with;

ResolvedConfig read(const std::string& text, const Overrides& overrides = {}) {
  return read_config_text(text, "run.toml", overrides);
}

TEST(ConfigReader, PutsEveryKeyIntoItsField) {
  const Config c = read(complete()).config;
  EXPECT_EQ(c.run, (RunConfig{"sample", "runs/sample", 7, 200}));
  EXPECT_EQ(c.layers_text, "d e*3");
  EXPECT_EQ(c.model.blocks, parse_layers("deee").blocks);
  EXPECT_EQ(c.model.vocab_size, 256);
  EXPECT_EQ(c.model.hidden_size, 128);
  EXPECT_EQ(c.model.intermediate_size, 384);
  EXPECT_EQ(c.model.num_attention_heads, 8);
  EXPECT_EQ(c.model.num_key_value_heads, 4);
  EXPECT_EQ(c.model.head_dim, 16);
  EXPECT_FALSE(c.model.qk_norm);
  EXPECT_EQ(c.model.rope_theta, 50000.0);
  EXPECT_EQ(c.model.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.model.initializer_range, 0.01);
  EXPECT_EQ(c.model.moe, (MoeConfig{.num_experts = 8,
                                    .num_experts_per_tok = 2,
                                    .moe_intermediate_size = 96,
                                    .shared_expert_intermediate_size = 64,
                                    .norm_topk_prob = false,
                                    .scoring = Scoring::sigmoid,
                                    .aux_loss = AuxiliaryLoss::sequence,
                                    .router_aux_loss_coef = 0.01,
                                    .router_z_loss_coef = 0.001}));
  EXPECT_EQ(c.parallelism, (Degrees{.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}));
  EXPECT_EQ(c.pipeline.schedule, "gpipe");
  EXPECT_EQ(c.precision, (PrecisionConfig{DType::float32, DType::bfloat16, DType::bfloat16}));
  EXPECT_EQ(c.training, (TrainingConfig{64, 16, 2, 0.0}));
  EXPECT_EQ(c.optimizer, (OptimizerConfig{UpdateRule::adamw, 3e-3, 0.8, 0.99, 1e-7, 0.2}));
  EXPECT_EQ(c.lr_scheduler, (SchedulerConfig{20, Decay::wsd, 0.2, 30}));
  EXPECT_EQ(c.data, (DataConfig{{DataSource("one.txt"), DataSource("two.txt")}, "byte"}));
  EXPECT_EQ(c.profiling, (ProfilingConfig{10, 12, false}));
}

TEST(ConfigReader, CommunicationTimesOutAfterFiveMinutesOrAsWritten) {
  EXPECT_EQ(read(complete()).config.run.communication_timeout_seconds, 300);
  EXPECT_EQ(read(complete(), {"run.communication_timeout_seconds=7"}).config.run.communication_timeout_seconds, 7);
  for (const auto& [value, bound] : {std::pair("0", "at least 1"), std::pair("86401", "at most 86400")}) {
    const auto key = fmt::format("run.communication_timeout_seconds={}", value);
    EXPECT_EQ(message(complete(), {key}),
              fmt::format("command line: --{}: error: run.communication_timeout_seconds: {} is out of range: {}", key,
                          value, bound));
  }
}

TEST(ConfigReader, TheLoadBalancingLossHasThreeConventions) {
  for (const AuxiliaryLoss loss : all_values<AuxiliaryLoss>) {
    EXPECT_EQ(read(complete(), {fmt::format("--model.moe.aux_loss={}", name_of(loss))}).config.model.moe.aux_loss,
              loss);
  }
  EXPECT_THROW(read(complete(), {"--model.moe.aux_loss=batch"}), Error);
}

TEST(ConfigReader, ResolvesAPolicyForEachFamily) {
  const Config c = read(complete()).config;
  const ShardPolicy standard{
      .residency = {Residency::while_on_stage}, .lookahead = 2, .reduction = {ReductionKind::every, 3}};
  ShardPolicy experts = standard, root = standard;
  experts.residency = {Residency::reshard_after_use};
  root.strategy = ShardStrategy::no_shard;
  EXPECT_EQ(c.shard, standard);
  const std::map<Family, ShardPolicy> expected = {{Family::dense, standard},
                                                  {Family::experts, experts},
                                                  {Family::embedding, standard},
                                                  {Family::head, standard},
                                                  {Family::root, root}};
  EXPECT_EQ(c.shard_by_family, expected);
}

// A family's section may stand before [shard], and an override of the default reaches the families.
TEST(ConfigReader, PoliciesDoNotDependOnTheOrderOfSections) {
  const std::string text = with("[run]\n", "[shard.dense]\nlookahead = 5\n[run]\n");
  const Config c = read(text, {"--shard.residency=step"}).config;
  EXPECT_EQ(c.shard_by_family.at(Family::dense),
            (ShardPolicy{.residency = {Residency::step}, .lookahead = 5, .reduction = {ReductionKind::every, 3}}));
  EXPECT_EQ(to_string(c.shard_by_family.at(Family::head).residency), "step");
  EXPECT_EQ(to_string(c.shard_by_family.at(Family::experts).residency), "reshard_after_use");
}

TEST(ConfigReader, WhatIsNotWrittenHasTheDefaultOfTheStruct) {
  const Config c = read(R"([model]
layers = "d"
vocab_size = 256
hidden_size = 8
intermediate_size = 8
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 4
[data]
train = ["a"]
)")
                       .config;
  EXPECT_EQ(c.run, RunConfig());
  EXPECT_EQ(c.parallelism, Degrees());
  EXPECT_EQ(c.training, TrainingConfig());
  EXPECT_EQ(c.optimizer, OptimizerConfig());
  EXPECT_EQ(c.shard_by_family.size(), 5u);
  EXPECT_EQ(c.shard_by_family.at(Family::head), ShardPolicy());
}

TEST(ConfigReader, ResolvedTextReadsBackToTheSameConfig) {
  const Overrides odd = {"--optimizer.learning_rate=0.1234567890123456789", "--run.name=\"a\\\"b\\\\c\\u0001\\n\"",
                         "--model.rope_theta=1e22", "--shard.head.lookahead=0", "--run.seed=9223372036854775807"};
  const ResolvedConfig first = read(complete(), odd);
  EXPECT_EQ(first.config.run.name, "a\"b\\c\x01\n");
  for (const std::string& text : {first.toml, first.annotated}) {
    const ResolvedConfig second = read(text);
    EXPECT_EQ(second.config, first.config);
    EXPECT_EQ(second.toml, first.toml);
  }
}

TEST(ConfigReader, AnnotatesTheOriginOfEachValue) {
  const std::string text = read(with("decay_steps = 30\n", ""), {"run.steps=50"}).annotated;
  const auto line = [&](const std::string& begin) {
    const std::size_t at = text.find("\n" + begin + " = ");
    return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  };
  EXPECT_TRUE(line("steps").ends_with("= 50                               # command line")) << line("steps");
  EXPECT_TRUE(line("vocab_size").ends_with("# run.toml:10")) << line("vocab_size");
  EXPECT_TRUE(line("decay_steps").ends_with("# default")) << line("decay_steps");
  const std::string dense = text.substr(text.find("[shard.dense]"));
  // A comment in the text that is written: it follows.
  EXPECT_NE(dense.find("\n# residency = \"while_on_stage\"           # shard.residency\n"), std::string::npos) << dense;
}

TEST(ConfigOverrides, WinOverTheFileAndTheLastOneWins) {
  const Config c = read(complete(), {"--run.steps=30", "run.steps=40", "--run.name=bare word", "--model.qk_norm=true",
                                     "--optimizer.betas=[0.5, 0.6]", "--data.train=[\"x\"]",
                                     "--lr_scheduler.decay=cosine", "--parallelism={expert = 1, tensor = 1}",
                                     "--run.directory=2024-01-01", "--lr_scheduler.decay_steps=0"})
                       .config;
  EXPECT_EQ(c.run.steps, 40);
  EXPECT_EQ(c.run.name, "bare word");
  EXPECT_EQ(c.run.directory, "2024-01-01");
  EXPECT_TRUE(c.model.qk_norm);
  EXPECT_EQ(c.optimizer.beta2, 0.6);
  EXPECT_EQ(c.data.train, std::vector<DataSource>{std::string("x")});
  EXPECT_EQ(c.lr_scheduler.decay, Decay::cosine);
  EXPECT_EQ(c.parallelism, (Degrees{.pipeline = 2, .data_shard = 2}));
}

TEST(ConfigOverrides, AreNamedAsTheyWereGiven) {
  EXPECT_EQ(message(complete(), {"--run.steps=abc", "run.seed=1.5", "--run.stepz=3", "nonsense"}),
            "command line: --run.steps=abc: error: run.steps: expected an integer, got the string \"abc\"\n"
            "command line: --run.seed=1.5: error: run.seed: expected an integer, got the number 1.5\n"
            "command line: --run.stepz=3: error: unknown key run.stepz: did you mean run.steps?\n"
            "command line: --nonsense: error: expected --section.key=value");
}

TEST(ConfigOverrides, ALineBreakCannotSmuggleInKeys) {
  EXPECT_EQ(read(complete(), {"--run.name=1\nrun.steps = 3"}).config.run.name, "1\nrun.steps = 3");
}

}  // namespace
}  // namespace weft
