// The rules between keys. Messages show the arithmetic.
#include "trainer/resolve/config_rules.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/trainer/config_sample.h"

namespace weft {
namespace {

using config_sample::complete;
using config_sample::count;
using config_sample::message;

struct RuleCase {
  Overrides overrides;
  std::string fault;
};

TEST(ConfigRules, NameBothSidesWithTheArithmetic) {
  const std::vector<RuleCase> cases = {
      {{"model.num_attention_heads=6", "parallelism.tensor=1", "parallelism.expert=1"},
       "num_attention_heads 6 is not a multiple of num_key_value_heads 4: remainder 2"},
      {{"model.vocab_size=2147483647", "training.global_batch_size=65536"},
       "over 4 ranks of data, tensor and context are"},
      {{"model.moe.num_experts=2147483646"},
       "num_experts 2147483646 in each of 3 MoE blocks (model.layers) are more than 65536 experts"},
      {{"model.hidden_size=2147483646", "model.intermediate_size=2147483646"},
       "hidden_size 2147483646, the widths beside it, vocab_size 256 and 4 blocks make"},
      {{"training.sequence_length=1073741824"},
       "microbatch_size 2 x sequence_length 1073741824 x num_experts_per_tok 2 = 4.29e+09 tokens to deal"},
      {{"training.sequence_length=16777216", "model.hidden_size=1048576"}, "tokens are 1048576 wide at most: 3.52e+13"},
      {{"training.global_batch_size=16000000"},
       "4 blocks and 4000000 microbatches (global_batch_size 16000000) have "
       "more than 1048576 actions in a step"},
      {{"parallelism.pipeline=4096"}, "stages; there are 1024 at most"},
      {{"model.num_key_value_heads=1"},
       "model.num_key_value_heads 1 does not split over parallelism.tensor 2: remainder 1"},
      {{"model.head_dim=15"}, "head_dim 15 is odd"},
      {{"model.intermediate_size=383"},
       "model.intermediate_size 383 does not split over parallelism.tensor 2: remainder 1"},
      {{"model.moe.shared_expert_intermediate_size=3"},
       "model.moe.shared_expert_intermediate_size 3 does not split over parallelism.tensor 2: remainder 1"},
      {{"training.sequence_length=5", "training.microbatch_size=1"},
       "microbatch_size 1 x sequence_length 5 = 5 tokens do not split over parallelism.tensor 2: remainder 1"},
      {{"parallelism.context=2", "training.sequence_length=6"},
       "sequence_length 6 does not split into 2 runs for each of 2 context ranks: remainder 2"},
      {{"parallelism.context=2", "training.sequence_length=4", "training.microbatch_size=1", "parallelism.tensor=4",
        "model.num_attention_heads=8", "model.num_key_value_heads=4"},
       "microbatch_size 1 x sequence_length 4 / context 2 = 2 tokens do not split over parallelism.tensor 4: remainder "
       "2"},
      {{"training.global_batch_size=10"},
       "global_batch_size 10 is not a multiple of microbatch_size 2 x data_replicate 1 x data_shard 2 = 4; nearest: 8 "
       "or "
       "12"},
      {{"training.global_batch_size=3"}, "x data_shard 2 = 4; nearest: 4"},
      {{"pipeline.chunks=2"}, "schedule \"gpipe\" runs 1 chunk a rank, not 2"},
      {{"parallelism.pipeline=3", "pipeline.first_stage_blocks=1"},
       "4 blocks - first_stage_blocks 1 = 3, which do not divide among the other 2 stages"},
      {{"model.moe.num_experts=7"}, "num_experts 7 does not split over parallelism.expert 2: remainder 1"},
      {{"model.moe.real_fraction=0.5", "model.moe.n_group=2"},
       "real_fraction 0.5 lets a token choose from null slots, which are in none of n_group 2 groups"},
      {{"model.moe.real_fraction=0.5", "training.sequence_length=536870912"},
       "microbatch_size 2 x sequence_length 536870912 x num_experts_per_tok 2 / real_fraction 0.5 = 4.29e+09 tokens to "
       "deal"},
      {{"model.moe.num_experts_per_tok=9"}, "num_experts_per_tok 9 is more than num_experts 8"},
      {{"model.moe.num_experts=0"}, "model.moe.num_experts is required: model.layers \"d e*3\" has MoE blocks (e, E)"},
      {{"model.moe.num_experts_per_tok=0"}, "model.moe.num_experts_per_tok is required"},
      {{"model.layers=M d e*2", "model.state_space.num_heads=0", "model.state_space.n_groups=2"},
       "model.state_space.num_heads is required: model.layers \"M d e*2\" has state spaces (M)"},
      {{"model.head_dim=0"}, "model.head_dim is required: model.layers \"d e*3\" has attention (d, e, A)"},
      {{"model.layers=M d e*2", "model.state_space.num_heads=12", "model.state_space.n_groups=8"},
       "state_space.num_heads 12 is not a multiple of n_groups 8: remainder 4"},
      {{"model.layers=M d e*2", "model.state_space.num_heads=12"},
       "model.state_space.n_groups 1 does not split over parallelism.tensor 2: remainder 1"},
      {{"model.layers=M d e*2", "model.state_space.num_heads=12", "model.state_space.n_groups=2",
        "parallelism.context=4"},
       "model.state_space.num_heads 12 does not split over tensor 2 x context 4: remainder 4"},
      {{"model.layers=M d e*2", "model.state_space.num_heads=12", "model.state_space.n_groups=6",
        "parallelism.context=2"},
       "the ranks of context 2 share the 3 groups of model.state_space.n_groups on a tensor rank unevenly"},
      {{"model.layers=M d e*2", "model.state_space.num_heads=12", "model.state_space.n_groups=2",
        "precision.compute=float8"},
       "float8 multiplies sizes of multiples of 16, but the columns of a state space 2060 over 2 ranks is 1030"},
      {{"model.layers=M d e*2", "model.state_space.num_heads=1", "parallelism.tensor=1", "optimizer.name=muon"},
       "those of dense have a single row where model.state_space.num_heads is 1"},
      {{"model.moe.moe_intermediate_size=0"}, "model.moe.moe_intermediate_size is required"},
      {{"model.intermediate_size=0"},
       "model.intermediate_size is required: model.layers \"d e*3\" has dense blocks (d, D)"},
      {{"model.layers=dddd"}, "expert 2 has no experts to spread: model.layers \"dddd\" has no MoE blocks (e, E)"},
      {{"parallelism.expert=8"}, "expert 8 x expert_tensor 1 = 8 does not divide the 4 ranks of a stage"},
      {{"parallelism.expert_dispatch=hierarchical"},
       "expert_dispatch \"hierarchical\" goes between nodes, and expert_nodes is 1: write the number of nodes that the "
       "2 "
       "ranks of an expert group stand on, or \"all_to_all\""},
      {{"parallelism.expert_dispatch=hierarchical", "parallelism.expert_nodes=3"},
       "expert_nodes 3 does not divide the 2 ranks of an expert group"},
      {{"hardware.expert_load=3"}, "expert_load 3 is more than the parallelism.expert 2 ranks can differ by"},
      {{"hardware.expert_load=1.5", "model.moe.force_balance=true"},
       "expert_load 1.5 contradicts force_balance, which deals experts in turn"},
      {{"hardware.expert_load=1.5", "model.moe.pad_to_capacity=true", "model.moe.capacity_factor=1.25"},
       "expert_load 1.5 contradicts pad_to_capacity, which gives every expert equally many rows"},
      {{"model.vocab_size=255"}, "vocab_size 255 is too small for the tokenizer \"byte\", which has 256 tokens"},
      {{"lr_scheduler.warmup_steps=201"}, "warmup_steps 201 is more than run.steps 200"},
      {{"lr_scheduler.decay_steps=181"}, "warmup_steps 20 + decay_steps 181 = 201 is more than run.steps 200"},
      {{"profiling.last_step=201"}, "last_step 201 is more than run.steps 200"},
      {{"profiling.first_step=201", "profiling.last_step=0"}, "first_step 201 is more than run.steps 200"},
      {{"profiling.last_step=9"}, "last_step 9 is before first_step 10"},
      {{"profiling.first_step=0"}, "last_step 12 without a first_step records nothing"},
  };
  for (const RuleCase& test : cases) {
    const std::string text = message(complete(), test.overrides);
    EXPECT_NE(text.find("error: "), std::string::npos) << test.fault << "\n" << text;
    EXPECT_NE(text.find(test.fault), std::string::npos) << test.fault << "\n" << text;
    EXPECT_EQ(count(text, "error:"), 1) << text;
  }
}

// Heads that do not split make one of two other rules speak as well: no single fault shows this one.
TEST(ConfigRules, QueryHeadsSplitOverTensor) {
  const std::string text = message(complete(), {"model.num_attention_heads=7"});
  EXPECT_NE(text.find("model.num_attention_heads 7 does not split over parallelism.tensor 2: remainder 1"),
            std::string::npos)
      << text;
  EXPECT_EQ(count(text, "error:"), 2) << text;
}

TEST(ConfigRules, AreShownAtTheKeyTheyAreAbout) {
  EXPECT_EQ(message(config_sample::with("global_batch_size = 16", "global_batch_size = 18")),
            "run.toml:57:21: error: global_batch_size 18 is not a multiple of microbatch_size 2 x data_replicate 1 x "
            "data_shard 2 = 4; nearest: 16 or 20\n"
            "  57 | global_batch_size = 18\n"
            "     |                     ^~");
  const std::string missing = message(config_sample::with("intermediate_size = 384\n", ""));
  EXPECT_TRUE(missing.starts_with("run.toml:9:10: error: model.intermediate_size is required: ")) << missing;
}

TEST(ConfigRules, VocabularyAndExpertWidthNeedNotDivide) {
  EXPECT_EQ(message(complete(), {"model.vocab_size=257", "model.hidden_size=31", "model.moe.moe_intermediate_size=7"}),
            "accepted");
  EXPECT_EQ(message(complete(), {"model.layers=ee", "model.intermediate_size=0"}), "accepted");
}

// Of two tokens the first has one behind it.
TEST(ConfigRules, PredictorsReadInsideTheSequence) {
  const auto of = [](const std::string& layers, int length) {
    return message(complete(), {"model.layers=" + layers, fmt::format("training.sequence_length={}", length),
                                "shard.reduction=last_microbatch"});
  };
  const std::string text = of("d e*2 m*2", 2);
  EXPECT_NE(text.find("has 2 predictors (m), and predictor 2 would read 2 tokens ahead in a sequence_length of 2: "
                      "write at most 1 or longer sequences"),
            std::string::npos)
      << text;
  EXPECT_EQ(count(text, "error:"), 1) << text;
  EXPECT_EQ(of("d e*2 m*2", 3), "accepted");
  EXPECT_EQ(of("d e*2 m", 2), "accepted");
  EXPECT_EQ(of("d e*3", 1), "accepted");
}

TEST(ConfigRules, AreSkippedWhereAKeyIsFaultyAlready) {
  const std::string text = message(complete(), {"parallelism.tensor=0", "model.head_dim=15"});
  EXPECT_EQ(count(text, "error:"), 2) << text;
}

TEST(ConfigRules, DegreesTooLargeToMultiplyAreRefused) {
  const std::string text = message(complete(), {"parallelism.tensor=32768", "parallelism.data_shard=32768",
                                                "parallelism.data_replicate=32768", "parallelism.pipeline=32768"});
  EXPECT_NE(text.find("is more than 1048576 ranks"), std::string::npos) << text;
}

}  // namespace
}  // namespace weft
