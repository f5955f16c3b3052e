// The architectures that can express a model, the reasons of others that cannot, and their loaders.
#include <algorithm>

#include "tests/trainer/huggingface_fixture.h"
#include "trainer/huggingface/model_section.h"

namespace weft::huggingface_test {
namespace {

using Reasons = std::vector<std::string>;

TEST(HuggingFaceArchitecture, IsChosenByWhatTheModelNeeds) {
  for (const Architecture architecture : architectures) {
    const ModelConfig model = tiny_model(architecture, false);
    EXPECT_EQ(choose_architecture(model), architecture);
    for (const Architecture other : architectures) {
      EXPECT_EQ(reasons_against(other, model).empty(), other == architecture)
          << traits_of(other).model_type << " for " << traits_of(architecture).model_type;
    }
    EXPECT_EQ(architecture_of(traits_of(architecture).model_type), architecture);
  }
}

TEST(HuggingFaceArchitecture, SaysInWordsWhyAnotherCannot) {
  const ModelConfig hybrid = tiny_model(Architecture::qwen3_moe, false);  // e d e, weights not renormalised
  EXPECT_EQ(
      reasons_against(Architecture::mixtral, hybrid),
      (Reasons{"block 1 is dense: mixtral has no dense blocks; qwen3_moe, qwen2_moe and glm4_moe can",
               "model.qk_norm is true: mixtral does not normalise queries and keys; qwen3, qwen3_moe and glm4_moe can",
               "model.moe.norm_topk_prob is false: mixtral always makes the weights of the chosen experts sum to "
               "one; qwen3_moe, qwen2_moe and glm4_moe can"}));
  EXPECT_EQ(reasons_against(Architecture::qwen3, hybrid),
            (Reasons{"block 0 has experts: qwen3 has dense blocks only; qwen3_moe, qwen2_moe and glm4_moe can"}));
  EXPECT_EQ(reasons_against(Architecture::qwen3_moe, tiny_model(Architecture::llama, false)),
            (Reasons{"no block has experts: qwen3_moe is for models that have some; llama and qwen3 can",
                     "model.qk_norm is false: qwen3_moe always normalises queries and keys; llama, mixtral, qwen2_moe "
                     "and glm4_moe can"}));
}

TEST(HuggingFaceArchitecture, ListsWhatNoneCanExpress) {
  ModelConfig model = tiny_model(Architecture::qwen3_moe, false);
  model.moe.shared_expert_intermediate_size = 16;
  model.moe.scoring = Scoring::sigmoid;
  const std::string message = refusal([&] { choose_architecture(model); });
  for (const char* part :
       {"\n  llama: block 0 has experts", "\n  qwen3_moe: model.moe.shared_expert_intermediate_size is 16",
        "and model.moe.scoring is \"sigmoid\": qwen3_moe scores experts by softmax"}) {
    EXPECT_TRUE(has(message, part)) << message;
  }
  // A hybrid without head norms is nobody's; what is not used is nobody's business.
  model = tiny_model(Architecture::qwen3_moe, false);
  model.qk_norm = false;
  EXPECT_TRUE(has(refusal([&] { choose_architecture(model); }), "qwen3_moe: model.qk_norm is false"));
  model = tiny_model(Architecture::qwen3, false);
  model.moe.scoring = Scoring::sigmoid;
  model.moe.router_z_loss_coef = 0.1;
  EXPECT_EQ(choose_architecture(model), Architecture::qwen3);
}

TEST(HuggingFaceArchitecture, HasNoNullSlots) {
  for (const Architecture architecture : {Architecture::mixtral, Architecture::qwen3_moe, Architecture::glm4_moe}) {
    ModelConfig model = tiny_model(architecture, false);
    model.moe.real_fraction = 0.5;
    const std::vector<std::string> reasons = reasons_against(architecture, model);
    ASSERT_EQ(reasons.size(), 1u);
    EXPECT_TRUE(has(reasons[0], "model.moe.real_fraction is 0.5")) << reasons[0];
  }
}

// transformers' LlamaConfig checks this even where head_dim is given.
TEST(HuggingFaceArchitecture, KnowsThatLlamaDividesTheHiddenSize) {
  ModelConfig model = tiny_model(Architecture::llama, false);
  model.num_attention_heads = 7;
  model.num_key_value_heads = 7;
  EXPECT_EQ(reasons_against(Architecture::llama, model).size(), 1u);
  EXPECT_TRUE(
      has(reasons_against(Architecture::llama, model)[0], "hidden_size 24 is not a multiple of num_attention_heads 7"));
  model = tiny_model(Architecture::qwen3, false);
  model.num_attention_heads = model.num_key_value_heads = 7;
  EXPECT_EQ(choose_architecture(model), Architecture::qwen3);
}

TEST(HuggingFaceArchitecture, SaysWhoLoadsIt) {
  const auto loaders = [](const ModelConfig& model) { return loaders_of(choose_architecture(model), model); };
  const auto mixed = loaders(tiny_model(Architecture::qwen3_moe, false));
  ASSERT_EQ(mixed.size(), 3u);
  EXPECT_TRUE(mixed[0].loads && mixed[1].loads);
  EXPECT_EQ(mixed[2].name, "llama.cpp");
  EXPECT_FALSE(mixed[2].loads);
  EXPECT_EQ(mixed[2].reason, "block 1 is dense: its qwen3moe expects experts in every block");
  ModelConfig experts_only = tiny_model(Architecture::qwen3_moe, false);
  experts_only.blocks = parse_layers("e*3").blocks;
  EXPECT_TRUE(std::ranges::all_of(loaders(experts_only), &Loader::loads));
  for (const Architecture architecture : {Architecture::llama, Architecture::mixtral, Architecture::qwen3}) {
    EXPECT_TRUE(std::ranges::all_of(loaders(tiny_model(architecture, true)), &Loader::loads));
  }
  EXPECT_TRUE(std::ranges::none_of(loaders_of(Architecture::llama, experts_only), &Loader::loads));
}

TEST(HuggingFaceArchitecture, SaysWhatOfSharedExpertsAndRoutersDiffers) {
  const ModelConfig gated = tiny_model(Architecture::qwen2_moe, false), glm = tiny_model(Architecture::glm4_moe, false);
  EXPECT_EQ(reasons_against(Architecture::qwen2_moe, glm),
            (Reasons{"model.layers ends with m: qwen2_moe has no multi-token prediction (--without-predictors writes "
                     "the model without it); glm4_moe can",
                     "model.qk_norm is true: qwen2_moe does not normalise queries and keys; qwen3, qwen3_moe and "
                     "glm4_moe can",
                     "model.head_dim is 8: qwen2_moe divides hidden_size 24 by num_attention_heads 4; llama, mixtral, "
                     "qwen3, qwen3_moe and glm4_moe can",
                     "model.moe.shared_expert_gate is false: qwen2_moe always gates its shared expert",
                     "model.moe.scoring is \"sigmoid\": qwen2_moe scores experts by softmax",
                     "model.moe.selection_bias is true: qwen2_moe chooses experts by their scores alone",
                     "model.moe.topk_group is 2 of n_group 3: qwen2_moe chooses among all experts",
                     "model.moe.routed_scaling_factor is 1.75: qwen2_moe does not scale the experts' weights"}));
  EXPECT_EQ(reasons_against(Architecture::glm4_moe, gated),
            (Reasons{"block 1 is dense behind one with experts: glm4_moe has dense blocks first; qwen3_moe and "
                     "qwen2_moe can",
                     "model.moe.shared_expert_gate is true: glm4_moe never gates its shared expert",
                     "model.moe.shared_expert_intermediate_size is 10: glm4_moe has whole shared experts, each as wide "
                     "as a routed one, 14",
                     "model.moe.scoring is \"softmax\": glm4_moe scores experts by sigmoid"}));
  ModelConfig bare = glm;
  bare.moe.shared_expert_intermediate_size = 0;
  bare.moe.n_group = bare.moe.topk_group = 6;
  EXPECT_EQ(reasons_against(Architecture::glm4_moe, bare),
            (Reasons{"model.moe.shared_expert_intermediate_size is 0: glm4_moe always has a shared expert; mixtral and "
                     "qwen3_moe can",
                     "model.moe.n_group is 6 of 6 experts: glm4_moe adds the scores of two experts a group"}));
}

TEST(HuggingFaceArchitecture, TakesNoModelWithFullExpertsOrExpertsDealtInTurn) {
  ModelConfig model = tiny_model(Architecture::qwen3_moe, false);
  model.moe.capacity_factor = 1.25;
  model.moe.force_balance = true;
  EXPECT_EQ(reasons_against(Architecture::qwen3_moe, model),
            (Reasons{"model.moe.force_balance is true: qwen3_moe chooses experts by their scores",
                     "model.moe.capacity_factor is 1.25: experts of qwen3_moe take all choices (weights trained on "
                     "with a factor of 0 can be exported)"}));
}

TEST(HuggingFaceArchitecture, WritesLayersAsTheyAreRead) {
  for (const char* pattern : {"d", "e*3", "d e*3", "e d e d*2"}) {
    EXPECT_EQ(layers_text(parse_layers(pattern)), pattern);
  }
}

}  // namespace
}  // namespace weft::huggingface_test
