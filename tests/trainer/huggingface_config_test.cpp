// config.json of every architecture as it was once agreed on, and what of others' is refused.
#include <nlohmann/json.hpp>

#include <cmath>
#include <functional>
#include <initializer_list>
#include <vector>

#include "tests/trainer/huggingface_fixture.h"
#include "trainer/huggingface/model_json.h"

namespace weft::huggingface_test {
namespace {

using SortedJson = nlohmann::json;

// Keys by their meaning in transformers' configuration classes (configuration_llama.py and its kin), values of
// tiny_model() by hand.
const SortedJson common = SortedJson::parse(R"({
  "vocab_size": 37, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "hidden_act": "silu", "max_position_embeddings": 64, "initializer_range": 0.015, "rms_norm_eps": 1e-05,
  "use_cache": true, "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0.0,
  "rope_theta": 50000.0, "rope_scaling": null,
  "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
  "torch_dtype": "bfloat16", "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": null,
  "transformers_version": "4.54.0"})");
const SortedJson own_of_llama = SortedJson::parse(R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "intermediate_size": 28,
  "mlp_bias": false, "pretraining_tp": 1})");
const SortedJson own_of_mixtral = SortedJson::parse(R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 2, "intermediate_size": 14,
  "num_local_experts": 5, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.01, "output_router_logits": false,
  "router_jitter_noise": 0.0, "sliding_window": null})");
const SortedJson own_of_qwen3 = SortedJson::parse(R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2, "intermediate_size": 28,
  "sliding_window": null, "use_sliding_window": false, "max_window_layers": 2})");
const SortedJson own_of_qwen3_moe = SortedJson::parse(R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 3, "intermediate_size": 28,
  "sliding_window": null, "use_sliding_window": false, "max_window_layers": 3,
  "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 14, "norm_topk_prob": false,
  "router_aux_loss_coef": 0.01, "output_router_logits": false, "decoder_sparse_step": 1, "mlp_only_layers": [1]})");
const SortedJson own_of_qwen2_moe = SortedJson::parse(R"({
  "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_hidden_layers": 3, "intermediate_size": 28,
  "head_dim": 6, "sliding_window": null, "use_sliding_window": false, "max_window_layers": 3,
  "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 14, "norm_topk_prob": false,
  "shared_expert_intermediate_size": 10, "qkv_bias": false,
  "router_aux_loss_coef": 0.01, "output_router_logits": false, "decoder_sparse_step": 1, "mlp_only_layers": [1]})");
const SortedJson own_of_glm4_moe = SortedJson::parse(R"({
  "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_hidden_layers": 3, "intermediate_size": 28,
  "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 14, "norm_topk_prob": false,
  "n_shared_experts": 3, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.75, "first_k_dense_replace": 1,
  "use_qk_norm": true, "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0,
  "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 1.0},
  "router_aux_loss_coef": 0.01, "output_router_logits": false})");

const SortedJson own_of_granite = SortedJson::parse(R"({
  "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "num_hidden_layers": 2,
  "head_dim": 6, "layer_types": ["attention", "mamba"], "intermediate_size": 14, "shared_intermediate_size": 10,
  "num_local_experts": 5, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.01, "output_router_logits": false,
  "position_embedding_type": "rope", "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0,
  "normalization_function": "rmsnorm", "mamba_n_heads": 6, "mamba_d_head": 8, "mamba_d_state": 5, "mamba_n_groups": 1,
  "mamba_d_conv": 3, "mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_proj_bias": false})");

SortedJson golden(Architecture architecture) {
  SortedJson json = common;
  const SortedJson* own[] = {&own_of_llama,     &own_of_mixtral,  &own_of_qwen3,  &own_of_qwen3_moe,
                             &own_of_qwen2_moe, &own_of_glm4_moe, &own_of_granite};
  json.update(*own[static_cast<std::size_t>(architecture)]);
  if (architecture == Architecture::granitemoehybrid) json["attention_multiplier"] = 1.0 / std::sqrt(6.0);
  if (architecture == Architecture::mixtral) json.erase("attention_bias");
  return json;
}

const FolderFacts facts = {64, DType::bfloat16, {1}, {2}, {}};

TEST(HuggingFaceConfig, IsGolden) {
  for (const Architecture architecture : architectures) {
    const std::string text = model_json(architecture, tiny_model(architecture, false), facts);
    EXPECT_EQ(text, golden(architecture).dump(2) + "\n");
    EXPECT_EQ(SortedJson::parse(model_json(architecture, tiny_model(architecture, true), facts))["tie_word_embeddings"],
              true);
  }
  EXPECT_EQ(
      SortedJson::parse(generation_json(facts)),
      SortedJson::parse(R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": null,
                            "transformers_version": "4.54.0"})"));
}

TEST(HuggingFaceConfig, IsReadBack) {
  for (const Architecture architecture : architectures) {
    for (const bool tied : {false, true}) {
      const ModelConfig model = tiny_model(architecture, tied);
      const FolderModel read = parse_model_json(model_json(architecture, model, facts), "config.json");
      EXPECT_EQ(read.architecture, architecture);
      EXPECT_EQ(read.model, model) << traits_of(architecture).model_type;
    }
  }
}

struct FieldChange {
  const char* name;
  std::function<void(ModelConfig&)> change;
  bool of_dense_blocks = false, of_moe_blocks = false, of_state_spaces = false;  // without, the field means nothing
};
// Every field of a model, except those that change training alone and no folder has. These are two of the auxiliary
// losses, the predictors' loss, the noise of a router, and how a selection bias moves. The last two are the choices
// that a full expert drops and the padding of others.
std::vector<FieldChange> changes_of_all_fields() {
  // A field more does not compile here: it is to be added below.
  [[maybe_unused]] const auto& [blocks, mtp_depth, mtp_loss_coef, vocab_size, hidden_size, intermediate_size,
                                num_attention_heads, num_key_value_heads, head_dim, sliding_window, qk_norm, rope_theta,
                                rms_norm_eps, tie_word_embeddings, initializer_range, state_space, moe] = ModelConfig();
  [[maybe_unused]] const auto& [num_experts, num_experts_per_tok, real_fraction, moe_intermediate_size,
                                shared_expert_intermediate_size, norm_topk_prob, scoring, aux_loss,
                                router_aux_loss_coef, router_z_loss_coef, routed_scaling_factor, n_group, topk_group,
                                shared_expert_gate, selection_bias, bias_update, bias_update_rate, bias_schedule,
                                router_jitter_noise, capacity_factor, drop_policy, pad_to_capacity, force_balance] =
      moe;
  [[maybe_unused]] const auto& [num_heads, space_head_dim, state_size, n_groups, conv_kernel] = state_space;
  using M = ModelConfig;
  return {
      {"blocks, one more dense", [](M& m) { m.blocks.push_back(BlockKind::dense); }},
      {"blocks, one more MoE", [](M& m) { m.blocks.push_back(BlockKind::moe); }},
      {"blocks, a state space", [](M& m) { m.blocks.emplace_back(BlockKind::none, 0, Mixer::state_space); }},
      {"blocks, attention alone", [](M& m) { m.blocks.emplace_back(BlockKind::none, 0, Mixer::attention); }},
      {"blocks, experts alone", [](M& m) { m.blocks.emplace_back(BlockKind::moe, 0, Mixer::none); }},
      {"blocks, one more inside a predictor",
       [](M& m) {
         m.blocks.push_back(m.blocks.back());
         m.mtp_depth = 1;
       }},
      {"vocab_size", [](M& m) { m.vocab_size += 3; }},
      {"hidden_size", [](M& m) { m.hidden_size += 4; }},
      {"intermediate_size", [](M& m) { m.intermediate_size += 3; }, true},
      {"num_attention_heads", [](M& m) { m.num_attention_heads += m.num_key_value_heads; }},
      {"num_key_value_heads", [](M& m) { m.num_key_value_heads = m.num_attention_heads; }},
      {"head_dim", [](M& m) { m.head_dim += 2; }},
      {"sliding_window", [](M& m) { m.sliding_window += 5; }},
      {"qk_norm", [](M& m) { m.qk_norm = !m.qk_norm; }},
      {"rope_theta", [](M& m) { m.rope_theta *= 2; }},
      {"rms_norm_eps", [](M& m) { m.rms_norm_eps *= 2; }},
      {"tie_word_embeddings", [](M& m) { m.tie_word_embeddings = !m.tie_word_embeddings; }},
      {"initializer_range", [](M& m) { m.initializer_range *= 2; }},
      {"num_experts", [](M& m) { m.moe.num_experts += m.moe.n_group; }, false, true},
      {"num_experts_per_tok", [](M& m) { m.moe.num_experts_per_tok += 1; }, false, true},
      {"real_fraction", [](M& m) { m.moe.real_fraction = 0.5; }, false, true},
      {"moe_intermediate_size", [](M& m) { m.moe.moe_intermediate_size += 3; }, false, true},
      {"shared_expert", [](M& m) { m.moe.shared_expert_intermediate_size += 8; }, false, true},
      {"norm_topk_prob", [](M& m) { m.moe.norm_topk_prob = !m.moe.norm_topk_prob; }, false, true},
      {"scoring", [](M& m) { m.moe.scoring = Scoring::sqrt_softplus; }, false, true},
      {"routed_scaling_factor", [](M& m) { m.moe.routed_scaling_factor = 2.5; }, false, true},
      {"n_group and topk_group", [](M& m) { m.moe.n_group = 2; }, false, true},
      {"shared_expert_gate",
       [](M& m) {
         m.moe.shared_expert_intermediate_size = 28;
         m.moe.shared_expert_gate = !m.moe.shared_expert_gate;
       },
       false, true},
      {"selection_bias", [](M& m) { m.moe.selection_bias = !m.moe.selection_bias; }, false, true},
      {"capacity_factor", [](M& m) { m.moe.capacity_factor = 1.25; }, false, true},
      {"force_balance", [](M& m) { m.moe.force_balance = true; }, false, true},
      {"router_aux_loss_coef", [](M& m) { m.moe.router_aux_loss_coef += 0.25; }, false, true},
      {"state_space.num_heads", [](M& m) { m.state_space.num_heads *= 2; }, false, false, true},
      {"state_space.num_heads, one more", [](M& m) { m.state_space.num_heads += 1; }, false, false, true},
      {"state_space.head_dim", [](M& m) { m.state_space.head_dim *= 2; }, false, false, true},
      {"state_space.state_size", [](M& m) { m.state_space.state_size += 2; }, false, false, true},
      {"state_space.n_groups", [](M& m) { m.state_space.n_groups = 2; }, false, false, true},
      {"state_space.conv_kernel", [](M& m) { m.state_space.conv_kernel += 1; }, false, false, true},
  };
}

TEST(HuggingFaceConfig, KeepsEveryFieldOfAModelOrRefusesIt) {
  for (const Architecture architecture : architectures) {
    const ModelConfig original = tiny_model(architecture, false);
    int kept = 0, refused = 0;
    for (const FieldChange& field : changes_of_all_fields()) {
      SCOPED_TRACE(fmt::format("{} of {}", field.name, traits_of(architecture).model_type));
      if (field.of_dense_blocks && !original.has(BlockKind::dense)) continue;
      if (field.of_moe_blocks && !original.has(BlockKind::moe)) continue;
      if (field.of_state_spaces && !original.has(Mixer::state_space)) continue;
      ModelConfig model = original;
      field.change(model);
      ASSERT_NE(model, original);
      if (!reasons_against(architecture, model).empty()) {
        ++refused;
        continue;
      }
      ++kept;
      ModelConfig read = parse_model_json(model_json(architecture, model, facts), "config.json").model;
      // The coefficient is multiplied on the way out and divided on the way in.
      EXPECT_DOUBLE_EQ(read.moe.router_aux_loss_coef, model.moe.router_aux_loss_coef);
      read.moe.router_aux_loss_coef = model.moe.router_aux_loss_coef;
      // A model without biases has some of zero there (huggingface_exchange_test.cpp).
      if (traits_of(architecture).sigmoid_router) read.moe.selection_bias = model.moe.selection_bias;
      EXPECT_EQ(read, model);
    }
    EXPECT_GE(kept, 8);
    EXPECT_GE(refused, 1);
  }
}

FolderModel parse(const SortedJson& json) {
  return parse_model_json(json.dump(), "config.json");
}
std::string message(const SortedJson& json) {
  return refusal([&] { parse(json); });
}
SortedJson changed(Architecture architecture, const char* key, SortedJson value) {
  SortedJson json = golden(architecture);
  json[key] = std::move(value);
  return json;
}
SortedJson without(Architecture architecture, std::initializer_list<const char*> keys) {
  SortedJson json = golden(architecture);
  for (const char* key : keys) json.erase(key);
  return json;
}

TEST(HuggingFaceConfig, IsReadInEitherSpelling) {
  const ModelConfig model = tiny_model(Architecture::llama, false);
  EXPECT_EQ(parse(without(Architecture::llama, {"rope_theta"})).model, model);
  EXPECT_EQ(parse(without(Architecture::llama, {"rope_parameters", "rope_scaling"})).model, model);
  SortedJson experts = without(Architecture::qwen3_moe, {"num_experts"});
  experts["num_local_experts"] = 5;
  EXPECT_EQ(parse(experts).model, tiny_model(Architecture::qwen3_moe, false));
  EXPECT_EQ(parse(changed(Architecture::llama, "rope_scaling", {{"type", "default"}})).model, model);
  EXPECT_EQ(parse(changed(Architecture::llama, "partial_rotary_factor", 1.0)).model, model);
  EXPECT_EQ(parse(changed(Architecture::llama, "is_causal", true)).model, model);
  EXPECT_EQ(parse(changed(Architecture::llama, "per_layer_config", SortedJson::object())).model, model);
}

// What the class of llama takes where old files say nothing.
TEST(HuggingFaceConfig, FillsInWhatOldFilesLeaveOut) {
  SortedJson old =
      without(Architecture::llama, {"num_key_value_heads", "head_dim", "attention_bias", "mlp_bias",
                                    "tie_word_embeddings", "hidden_act", "rope_parameters", "rope_scaling"});
  ModelConfig model = tiny_model(Architecture::llama, false);
  model.num_key_value_heads = 4;
  model.head_dim = 6;
  EXPECT_EQ(parse(old).model, model);
}

// default_theta of the configuration classes.
TEST(HuggingFaceConfig, TakesTheBaseOfTheArchitectureWhereNoneIsSaid) {
  for (const Architecture architecture : architectures) {
    const double expected = architecture == Architecture::mixtral ? 1e6 : 1e4;
    EXPECT_EQ(parse(without(architecture, {"rope_theta", "rope_parameters"})).model.rope_theta, expected);
    SortedJson typed = without(architecture, {"rope_theta"});
    typed["rope_parameters"] = {{"rope_type", "default"}};
    EXPECT_EQ(parse(typed).model.rope_theta, expected);
  }
}

// 3 choices and 2 blocks: 0.02 there is 0.02 x 3 / 2 here.
TEST(HuggingFaceConfig, ConvertsTheCoefficientOfTheRouter) {
  SortedJson json = golden(Architecture::mixtral);
  json["num_experts_per_tok"] = 3;
  json["router_aux_loss_coef"] = 0.02;
  const ModelConfig model = parse(json).model;
  EXPECT_DOUBLE_EQ(model.moe.router_aux_loss_coef, 0.03);
  EXPECT_EQ(SortedJson::parse(model_json(Architecture::mixtral, model, facts))["router_aux_loss_coef"], 0.02);
}

TEST(HuggingFaceConfig, SaysWhatGoesWithAModel) {
  const auto read = [](const SortedJson& json) { return parse_folder_facts(json.dump(), "config.json"); };
  const FolderFacts several = read({{"model_type", "any"},
                                    {"max_position_embeddings", 4096},
                                    {"bos_token_id", 1},
                                    {"eos_token_id", {2, 7, 9}},
                                    {"pad_token_id", nullptr}});
  EXPECT_EQ(several.max_position_embeddings, 4096);
  EXPECT_EQ(several.bos_token_id, (std::vector<std::int64_t>{1}));
  EXPECT_EQ(several.eos_token_id, (std::vector<std::int64_t>{2, 7, 9}));
  EXPECT_TRUE(several.pad_token_id.empty());
  const SortedJson written =
      SortedJson::parse(model_json(Architecture::llama, tiny_model(Architecture::llama, false), several));
  EXPECT_EQ(written["bos_token_id"], 1);
  EXPECT_EQ(written["eos_token_id"], SortedJson({2, 7, 9}));
  EXPECT_EQ(read(SortedJson::object()).max_position_embeddings, 0);
  const std::string faults = refusal([&] {
    read({{"max_position_embeddings", "long"}, {"eos_token_id", {2, "</s>"}}});
  });
  for (const char* part :
       {"config.json: max_position_embeddings is \"long\"", "eos_token_id is [2,\"</s>\"], neither"}) {
    EXPECT_TRUE(has(faults, part)) << faults;
  }
}

TEST(HuggingFaceConfig, ReadsEveryPatternOfSparseBlocks) {
  SortedJson json = golden(Architecture::qwen3_moe);
  json["num_hidden_layers"] = 6;
  json["mlp_only_layers"] = {5, 0};
  json["decoder_sparse_step"] = 2;  // the second of every two
  EXPECT_EQ(parse(json).model.blocks, parse_layers("d e d e d d").blocks);
}

TEST(HuggingFaceConfig, ReadsPairsWithoutExperts) {
  SortedJson json = changed(Architecture::granitemoehybrid, "num_local_experts", 0);
  json["layer_types"] = {"linear_attention", "full_attention"};
  json["mamba_d_head"] = "auto";
  json["time_step_limit"] = {0.0, {{"__float__", "Infinity"}}};  // as transformers 5.24 writes its default
  const ModelConfig model = parse(json).model;
  EXPECT_EQ(model.blocks, parse_layers("M D A D").blocks);
  EXPECT_EQ(model.intermediate_size, 10);
  EXPECT_EQ(model.moe, MoeConfig());
  const SortedJson written = SortedJson::parse(model_json(Architecture::granitemoehybrid, model, facts));
  EXPECT_EQ(written["num_local_experts"], 0);
  EXPECT_EQ(parse(written).model, model);
}

TEST(HuggingFaceConfig, RefusesWhatWeftDoesNotComputeByName) {
  const Architecture llama = Architecture::llama, qwen3 = Architecture::qwen3, moe = Architecture::qwen3_moe,
                     granite = Architecture::granitemoehybrid;
  const std::pair<SortedJson, const char*> cases[] = {
      {changed(llama, "attention_bias", true), "config.json: attention_bias is true: Weft has no biases"},
      {changed(llama, "mlp_bias", true), "mlp_bias is true"},
      {changed(llama, "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
       "rope_scaling.rope_type is \"llama3\""},
      {changed(llama, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}), "rope_scaling.factor is 2.0"},
      {changed(qwen3, "rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 50000.0}}),
       "rope_parameters.rope_type is \"yarn\""},
      {changed(llama, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}),
       "rope_theta is 50000, but rope_parameters.rope_theta is 10000"},
      {changed(qwen3, "rope_parameters", {{"rope_theta", 50000.0}, {"partial_rotary_factor", 0.5}}),
       "partial_rotary_factor is 0.5"},
      {changed(Architecture::mixtral, "sliding_window", 0), "sliding_window is 0, not a size"},
      {changed(qwen3, "layer_types", {"full_attention", "sliding_attention"}), "layer_types has \"sliding_attention\""},
      {changed(llama, "hidden_act", "gelu"), "hidden_act is \"gelu\""},
      {changed(llama, "is_causal", false), "is_causal is false: Weft attends to earlier positions alone"},
      {changed(qwen3, "per_layer_config", {{"1", {{"rms_norm_eps", 1e-3}}}}), "per_layer_config: Weft reads one value"},
      {changed(llama, "quantization_config", {{"quant_method", "gptq"}}), "quantization_config"},
      {changed(llama, "model_type", "gpt2"),
       "\"gpt2\" is not an architecture that Weft knows: llama, mixtral, qwen3, qwen3_moe, qwen2_moe, glm4_moe, "
       "granitemoehybrid"},
      {without(Architecture::qwen2_moe, {"qkv_bias"}), "qkv_bias is true, as it is where it is missing"},
      {changed(Architecture::glm4_moe, "partial_rotary_factor", 0.5), "partial_rotary_factor is 0.5"},
      {changed(Architecture::glm4_moe, "rope_parameters", {{"partial_rotary_factor", "all"}}),
       "rope_parameters.partial_rotary_factor is \"all\""},
      {changed(llama, "partial_rotary_factor", 0.5), "partial_rotary_factor is 0.5 (1 if it is missing)"},
      {changed(moe, "partial_rotary_factor", "all"), "partial_rotary_factor is \"all\", not a number"},
      {changed(Architecture::glm4_moe, "n_group", 4),
       "n_group is 4 and topk_group 2: 6 experts do not have such groups"},
      {changed(granite, "layer_types", {"mamba"}), "layer_types is no list of 2 layers (num_hidden_layers)"},
      {changed(granite, "layer_types", {"mamba", "full"}), "layer_types has \"full\": layers are \"attention\" or"},
      {changed(granite, "position_embedding_type", "nope"), "position_embedding_type is \"nope\""},
      {changed(granite, "attention_multiplier", 0.015625), "attention_multiplier is 0.015625: Weft has 0.408248 there"},
      {changed(granite, "embedding_multiplier", 12), "embedding_multiplier is 12: Weft has 1 there"},
      {changed(granite, "mamba_n_groups", 2), "mamba_n_groups is 2: the gated norm of Weft"},
      {changed(granite, "mamba_expand", 3), "mamba_n_heads 6 x mamba_d_head 8 is not mamba_expand 3 x hidden_size 24"},
      {changed(granite, "mamba_conv_bias", false), "mamba_conv_bias is false"},
      {changed(granite, "mamba_proj_bias", true), "mamba_proj_bias is true"},
      {changed(granite, "time_step_limit", {0.001, 0.1}), "time_step_limit is [0.001,0.1]: Weft does not limit"},
      {changed(granite, "time_step_limit", {0.0, {{"__float__", "NaN"}}}), "time_step_limit is [0.0,{\"__float__\""},
      {changed(moe, "mlp_only_layers", {3}), "mlp_only_layers has 3: there are 3 blocks"},
      {changed(moe, "num_experts_per_tok", 6), "num_experts_per_tok is 6 of 5 experts"},
      {changed(llama, "num_key_value_heads", 3), "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
      {changed(llama, "head_dim", 5), "head_dim is 5: the rotary embedding turns pairs"},
      {changed(llama, "hidden_size", -24), "hidden_size is -24, not a size"},
      {changed(llama, "hidden_size", 24.5), "hidden_size is 24.5, not a size"},
      {changed(llama, "vocab_size", "37"), "vocab_size is \"37\", not a size"},
      {changed(llama, "rms_norm_eps", 0.0), "rms_norm_eps is 0.0"},
      {changed(llama, "tie_word_embeddings", 1), "tie_word_embeddings is 1, neither true nor false"},
      {changed(moe, "num_hidden_layers", 2000000000), "more than 1000000 in all"},
      {changed(qwen3, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", "50000"}}),
       "rope_parameters.rope_theta is \"50000\", not a number"},
      {changed(llama, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 0}}),
       "rope_parameters.rope_theta is 0, not a number"},
      {changed(Architecture::glm4_moe, "num_experts_per_tok", 5), "num_experts_per_tok is 5 of 4 experts (topk_group)"},
      {changed(Architecture::glm4_moe, "first_k_dense_replace", 1.5), "first_k_dense_replace is 1.5, not a number of"},
      {changed(Architecture::glm4_moe, "num_nextn_predict_layers", -1), "num_nextn_predict_layers is -1, not a number"},
      {without(llama, {"model_type"}), "has no model_type"},
  };
  for (const auto& [json, part] : cases) EXPECT_TRUE(has(message(json), part)) << part << "\n" << message(json);
  EXPECT_TRUE(has(refusal([] { parse_model_json("{", "config.json"); }), "config.json is no JSON"));
  EXPECT_TRUE(has(refusal([] { parse_model_json("[]", "config.json"); }), "config.json has no model_type"));
}

TEST(HuggingFaceConfig, ReadsAWindowOfAllBlocksOrNone) {
  const auto window_of = [](const SortedJson& json) { return parse(json).model.sliding_window; };
  EXPECT_EQ(window_of(changed(Architecture::mixtral, "sliding_window", 4096)), 4096);
  EXPECT_EQ(window_of(changed(Architecture::llama, "sliding_window", 4096)), 0);
  SortedJson json = changed(Architecture::qwen3, "sliding_window", 4096);
  EXPECT_EQ(window_of(json), 0);
  json["use_sliding_window"] = true;
  EXPECT_EQ(window_of(json), 0);  // max_window_layers is 2 of 2 blocks
  json["max_window_layers"] = 1;
  EXPECT_TRUE(has(message(json), "max_window_layers is 1 of 2 blocks: Weft has one sliding window for all"));
  json["max_window_layers"] = 0;
  EXPECT_EQ(window_of(json), 4096);
  json["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_TRUE(has(message(json), "layer_types has \"full_attention\""));
  json.erase("layer_types");
  json["max_window_layers"] = 1e300;
  EXPECT_TRUE(has(message(json), "max_window_layers is 1e+300, not a number of them"));
}

// Classes of transformers 5.24: Qwen3MoeConfig has neither max_window_layers nor layer_types, and Qwen2MoeConfig gives
// every second block the window where layer_types do not say otherwise. A window is of 4096 where none is said.
TEST(HuggingFaceConfig, ReadsAWindowAsTheClassOfTheArchitectureDoes) {
  SortedJson json = without(Architecture::qwen3_moe, {"max_window_layers"});
  json["use_sliding_window"] = true;
  json["sliding_window"] = 512;
  EXPECT_EQ(parse(json).model.sliding_window, 512);
  json.erase("sliding_window");
  EXPECT_EQ(parse(json).model.sliding_window, 4096);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(parse(json).model.sliding_window, 0);
  for (const int first : {0, 1, 3}) {  // of 3 blocks
    json = changed(Architecture::qwen3_moe, "max_window_layers", first);
    json["sliding_window"] = 512;
    EXPECT_EQ(parse(json).model.sliding_window, 0) << first;
    json["use_sliding_window"] = true;
    EXPECT_EQ(parse(json).model.sliding_window, 512) << first;
  }
  json["layer_types"] = std::vector<std::string>(3, "full_attention");
  EXPECT_TRUE(has(message(json), "layer_types has \"full_attention\" where sliding_window makes"));
  json = changed(Architecture::qwen2_moe, "use_sliding_window", true);
  json["sliding_window"] = 512;
  EXPECT_TRUE(has(message(json), "use_sliding_window is true without layer_types"));
  json["layer_types"] = std::vector<std::string>(3, "sliding_attention");
  EXPECT_EQ(parse(json).model.sliding_window, 512);
  json["layer_types"] = std::vector<std::string>(3, "full_attention");
  EXPECT_EQ(parse(json).model.sliding_window, 0);
}

TEST(HuggingFaceConfig, WritesAWindow) {
  for (const Architecture architecture : architectures) {
    if (traits_of(architecture).window == WindowKeys::none) continue;
    ModelConfig model = tiny_model(architecture, false);
    model.sliding_window = 7;
    const SortedJson json = SortedJson::parse(model_json(architecture, model, facts));
    EXPECT_EQ(json["sliding_window"], 7);
    EXPECT_EQ(json.contains("layer_types"), architecture == Architecture::qwen2_moe);
    EXPECT_EQ(parse(json).model, model) << traits_of(architecture).model_type;
  }
  ModelConfig model = tiny_model(Architecture::llama, false);
  model.sliding_window = 7;
  EXPECT_EQ(reasons_against(Architecture::llama, model),
            (std::vector<std::string>{"model.sliding_window is 7: llama attends to all positions; mixtral, qwen3, "
                                      "qwen3_moe and qwen2_moe can"}));
}

// The library of JSON copies and writes documents by recursion, which would end the program.
TEST(HuggingFaceConfig, RefusesListsThatAreNestedTooDeep) {
  constexpr std::size_t deep = 200'000;
  const std::string text = "{\"hidden_act\": " + std::string(deep, '[') + std::string(deep, ']') + "}";
  EXPECT_TRUE(has(refusal([&] { parse_model_json(text, "config.json"); }), "nested deeper than 64 levels"));
  EXPECT_TRUE(has(refusal([&] { parse_folder_facts(text, "config.json"); }), "nested deeper than 64 levels"));
}

TEST(HuggingFaceConfig, ListsAllThatIsMissing) {
  const std::string text = message(without(
      Architecture::qwen3_moe, {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                                "num_key_value_heads", "head_dim", "intermediate_size", "num_experts",
                                "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "rms_norm_eps"}));
  for (const char* part : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                           "num_key_value_heads", "head_dim", "intermediate_size", "num_local_experts",
                           "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "rms_norm_eps"}) {
    EXPECT_TRUE(has(text, fmt::format("config.json: {} is missing", part))) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace weft::huggingface_test
