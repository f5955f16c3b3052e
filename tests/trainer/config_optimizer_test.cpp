// [optimizer] and its groups: what is inherited, what is not, and what does not fit.
#include <gtest/gtest.h>

#include "tests/trainer/config_sample.h"
#include "trainer/config/update_groups.h"

namespace weft {
namespace {

using config_sample::complete;
using config_sample::message;
using config_sample::with;

Config read_optimizer(const std::string& text, const Overrides& overrides = {}) {
  return read_config_text(text, "run.toml", overrides).config;
}
const OptimizerConfig& options_of(const Config& config, UpdateGroup group) {
  return config.optimizer_by_group.at(group);
}

TEST(OptimizerKeys, PutValuesIntoTheirFields) {
  const Config c =
      read_optimizer(complete(), {"optimizer.name=sgd", "optimizer.momentum=0.75", "optimizer.state=bfloat16"});
  const OptimizerConfig expected{.rule = UpdateRule::sgd,
                                 .learning_rate = 3e-3,
                                 .beta1 = 0.8,
                                 .beta2 = 0.99,
                                 .eps = 1e-7,
                                 .weight_decay = 0.2,
                                 .momentum = 0.75,
                                 .state = DType::bfloat16};
  EXPECT_EQ(c.optimizer, expected);
  EXPECT_EQ(c.optimizer_by_group.size(), update_groups.size());
  EXPECT_EQ(options_of(c, UpdateGroup::experts), expected);
  // Norm weights are not decayed unless it is written.
  OptimizerConfig vectors = expected;
  vectors.weight_decay = 0.0;
  EXPECT_EQ(options_of(c, UpdateGroup::vectors), vectors);
  EXPECT_EQ(
      options_of(read_optimizer(complete(), {"optimizer.vectors.weight_decay=0.5"}), UpdateGroup::vectors).weight_decay,
      0.5);
}

TEST(OptimizerKeys, AGroupKeepsWhatItWritesAndInheritsTheRest) {
  // Its section may stand before [optimizer], and an override of the default reaches it.
  const std::string text =
      with("[run]\n", "[optimizer.experts]\nlearning_rate = 0.5\nbetas = [0.1, 0.2]\nname = \"lion\"\n[run]\n");
  const Config c = read_optimizer(text, {"optimizer.weight_decay=0.25", "optimizer.head.state=bfloat16"});
  OptimizerConfig experts = c.optimizer, head = c.optimizer;
  EXPECT_EQ(c.optimizer.weight_decay, 0.25);
  experts.rule = UpdateRule::lion;
  experts.learning_rate = 0.5;
  experts.beta1 = 0.1;
  experts.beta2 = 0.2;
  head.state = DType::bfloat16;
  EXPECT_EQ(options_of(c, UpdateGroup::experts), experts);
  EXPECT_EQ(options_of(c, UpdateGroup::head), head);
  EXPECT_EQ(options_of(c, UpdateGroup::dense), c.optimizer);
}

// Muon turns matrices between hidden states; the rest goes by adamw unless it says otherwise.
TEST(OptimizerKeys, MuonLeavesEmbeddingHeadRoutingAndVectorsToAdamw) {
  const Config c =
      read_optimizer(complete(), {"optimizer.name=muon", "optimizer.head.name=sgd", "optimizer.embedding.name=lion"});
  const std::map<UpdateGroup, UpdateRule> expected = {
      {UpdateGroup::dense, UpdateRule::muon},     {UpdateGroup::experts, UpdateRule::muon},
      {UpdateGroup::embedding, UpdateRule::lion}, {UpdateGroup::head, UpdateRule::sgd},
      {UpdateGroup::root, UpdateRule::adamw},     {UpdateGroup::routing, UpdateRule::adamw},
      {UpdateGroup::vectors, UpdateRule::adamw},
  };
  for (const auto& [group, rule] : expected) EXPECT_EQ(options_of(c, group).rule, rule) << name_of(group);
}

// A configuration that nobody read has no groups written, and the same ones resolved.
TEST(OptimizerKeys, ResolveTheSameWithoutAFile) {
  Config written = read_optimizer(complete(), {"optimizer.name=muon"}), bare;
  bare.optimizer = written.optimizer;
  EXPECT_EQ(resolved_groups(bare), resolved_groups(written));
}

TEST(OptimizerKeys, ReadBackToTheSameConfig) {
  const ResolvedConfig first =
      read_config_text(complete(), "run.toml",
                       {"optimizer.name=muon", "optimizer.momentum=0.95", "optimizer.experts.learning_rate=0.125",
                        "optimizer.vectors.betas=[0.5, 0.75]", "optimizer.routing.state=bfloat16"});
  for (const std::string& text : {first.toml, first.annotated}) {
    const ResolvedConfig second = read_config_text(text, "run.toml");
    EXPECT_EQ(second.config, first.config);
    EXPECT_EQ(second.toml, first.toml);
  }
  const std::string vectors = first.annotated.substr(first.annotated.find("[optimizer.vectors]"));
  EXPECT_NE(vectors.find("weight_decay = 0.0                       # default\n"), std::string::npos) << vectors;
  EXPECT_NE(vectors.find("# eps = 1e-07                            # optimizer.eps\n"), std::string::npos) << vectors;
}

TEST(OptimizerKeys, RefuseWhatDoesNotFit) {
  const auto expect = [](const std::string& key, const std::string& fault) {
    const std::string text = message(complete(), {key});
    EXPECT_EQ(text, fmt::format("command line: --{}: error: {}", key, fault));
  };
  expect("optimizer.name=adam",
         "optimizer.name: expected \"adamw\", \"sgd\", \"lion\", \"lamb\" or \"muon\", got \"adam\" (did you mean "
         "\"adamw\"?)");
  expect("optimizer.experts.name=shampoo",
         "optimizer.experts.name: expected \"adamw\", \"sgd\", \"lion\", \"lamb\" or \"muon\", got \"shampoo\"");
  expect("optimizer.momentum=1", "optimizer.momentum: 1.0 is out of range: in [0, 1)");
  expect("optimizer.dense.momentum=-0.5", "optimizer.dense.momentum: -0.5 is out of range: in [0, 1)");
  expect("optimizer.state=float16",
         "optimizer.state: \"float16\" is not available in this version; use \"float32\" or \"bfloat16\"");
  expect("optimizer.vectors.betas=[0.5, 1.5]", "optimizer.vectors.betas: 1.5 is out of range: in [0, 1)");
  expect("optimizer.vectors.name=muon",
         "\"muon\" turns whole matrices between hidden states, which vectors is not: use \"adamw\", \"sgd\", \"lion\" "
         "or \"lamb\"");
  const std::string unknown = message(with("[run]", "[optimizer.expert]\nname = \"lion\"\n[run]"));
  EXPECT_EQ(unknown.substr(0, unknown.find('\n')),
            "run.toml:1:12: error: unknown section [optimizer.expert]: did you mean [optimizer.experts]?");
}

TEST(UpdateGroups, AreTheFamilyOfAMatrixAndOneForAllVectors) {
  const auto group = [](Family family, std::int64_t columns) {
    return update_group_of(whole_parameter("p", family, 8, columns, Initializer::normal));
  };
  EXPECT_EQ(group(Family::dense, 4), UpdateGroup::dense);
  EXPECT_EQ(group(Family::experts, 4), UpdateGroup::experts);
  EXPECT_EQ(group(Family::embedding, 4), UpdateGroup::embedding);
  EXPECT_EQ(group(Family::head, 4), UpdateGroup::head);
  EXPECT_EQ(group(Family::root, 4), UpdateGroup::root);
  EXPECT_EQ(group(Family::routing, 4), UpdateGroup::routing);
  for (const Family family : {Family::dense, Family::head, Family::routing}) {
    EXPECT_EQ(group(family, 1), UpdateGroup::vectors);
  }
}

}  // namespace
}  // namespace weft
