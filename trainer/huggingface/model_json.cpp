#include "trainer/huggingface/model_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

// The first version with all architectures.
constexpr const char* transformers_version = "4.54.0";

SortedJson token(const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? SortedJson(ids[0]) : SortedJson(ids);
}

void add_tokens(SortedJson& json, const FolderFacts& facts) {
  json["bos_token_id"] = token(facts.bos_token_id);
  json["eos_token_id"] = token(facts.eos_token_id);
  json["pad_token_id"] = token(facts.pad_token_id);
  json["transformers_version"] = transformers_version;
}

// Keys of all architectures. Rotary embedding and dtype use the names of transformers 4 and of transformers 5.
SortedJson common_keys(const ArchitectureTraits& traits, const ModelConfig& model, const FolderFacts& facts) {
  SortedJson json = {
      {"architectures", {traits.class_name}},
      {"model_type", traits.model_type},
      {"vocab_size", model.vocab_size},
      {"hidden_size", model.hidden_size},
      {"num_hidden_layers", model.layers()},
      {"num_attention_heads", model.num_attention_heads},
      {"num_key_value_heads", model.num_key_value_heads},
      {"head_dim", model.head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", facts.max_position_embeddings},
      {"initializer_range", model.initializer_range},
      {"rms_norm_eps", model.rms_norm_eps},
      {"use_cache", true},
      {"tie_word_embeddings", model.tie_word_embeddings},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"rope_theta", model.rope_theta},
      {"rope_scaling", nullptr},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", model.rope_theta}}},
      {"torch_dtype", name_of(facts.dtype)},
      {"dtype", name_of(facts.dtype)},
  };
  if (traits.partial_rotary) json["partial_rotary_factor"] = json["rope_parameters"]["partial_rotary_factor"] = 1.0;
  add_tokens(json, facts);
  return json;
}

SortedJson window_of(const ModelConfig& model) {
  return model.sliding_window > 0 ? SortedJson(model.sliding_window) : SortedJson();
}

// A window of all blocks, or of none. layer_types follow from it and are not written, because versions of transformers
// derive different values if they are there.
void add_window(SortedJson& json, const ModelConfig& model) {
  json["sliding_window"] = window_of(model);
  json["use_sliding_window"] = model.sliding_window > 0;
  json["max_window_layers"] = model.sliding_window > 0 ? 0 : model.layers();
}

void add_routing(SortedJson& json, const ModelConfig& model) {
  json["num_experts_per_tok"] = model.moe.num_experts_per_tok;
  json["router_aux_loss_coef"] = coefficient_for_folder(model);
  json["output_router_logits"] = false;
}

SortedJson dense_blocks(const ModelConfig& model) {
  SortedJson blocks = SortedJson::array();
  for (std::size_t block = 0; block < model.blocks.size(); ++block) {
    if (model.blocks[block] == BlockKind::dense) blocks.push_back(block);
  }
  return blocks;
}

// The keys that qwen3_moe and qwen2_moe have.
void add_qwen_moe(SortedJson& json, const ModelConfig& model) {
  add_window(json, model);
  add_routing(json, model);
  json["num_experts"] = model.moe.num_experts;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense_blocks(model);
}

void add_glm_moe(SortedJson& json, const ModelConfig& model) {
  const MoeConfig& moe = model.moe;
  add_routing(json, model);
  json["n_routed_experts"] = moe.num_experts;
  json["n_shared_experts"] = moe.shared_expert_intermediate_size / moe.moe_intermediate_size;
  json["n_group"] = moe.n_group;
  json["topk_group"] = moe.topk_group;
  json["routed_scaling_factor"] = moe.routed_scaling_factor;
  json["first_k_dense_replace"] = model.count(BlockKind::dense);
  json["use_qk_norm"] = model.qk_norm;
  json["num_nextn_predict_layers"] = model.mtp_depth;
}

// Without the factors of Granite: all are 1, and scores are divided by the root of head_dim as elsewhere.
void add_granite(SortedJson& json, const ModelConfig& model) {
  const MoeConfig& moe = model.moe;
  const StateSpaceConfig& space = model.state_space;
  const bool experts = model.has(BlockKind::moe);
  SortedJson types = SortedJson::array();
  for (const ModelBlock& block : model.blocks) {
    if (block.mixer != Mixer::none) types.push_back(block.mixer == Mixer::attention ? "attention" : "mamba");
  }
  json["num_hidden_layers"] = types.size();
  json["layer_types"] = std::move(types);
  json["position_embedding_type"] = "rope";
  json["attention_multiplier"] = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  for (const char* factor : {"embedding_multiplier", "residual_multiplier", "logits_scaling"}) json[factor] = 1.0;
  json["normalization_function"] = "rmsnorm";
  json["num_local_experts"] = experts ? moe.num_experts : 0;
  json["num_experts_per_tok"] = experts ? moe.num_experts_per_tok : 0;
  json["router_aux_loss_coef"] = experts ? coefficient_for_folder(model) : 0.0;
  json["output_router_logits"] = false;
  json["intermediate_size"] = experts ? moe.moe_intermediate_size : model.intermediate_size;
  json["shared_intermediate_size"] = experts ? moe.shared_expert_intermediate_size : model.intermediate_size;
  json["mamba_n_heads"] = space.num_heads;
  json["mamba_d_head"] = space.head_dim;
  json["mamba_d_state"] = space.state_size;
  json["mamba_n_groups"] = space.n_groups;
  json["mamba_d_conv"] = space.conv_kernel;
  json["mamba_expand"] = space.inner() / model.hidden_size;
  json["mamba_chunk_size"] = 256;
  json["mamba_conv_bias"] = true;
  json["mamba_proj_bias"] = false;
}

}  // namespace

std::string model_json(Architecture architecture, const ModelConfig& model, const FolderFacts& facts) {
  SortedJson json = common_keys(traits_of(architecture), model, facts);
  // Unused without dense blocks, but a width of 0 is invalid.
  json["intermediate_size"] = model.intermediate_size > 0 ? model.intermediate_size : model.moe.moe_intermediate_size;
  const bool names_width = architecture != Architecture::mixtral && architecture != Architecture::granitemoehybrid;
  if (model.has(BlockKind::moe) && names_width) {
    json["moe_intermediate_size"] = model.moe.moe_intermediate_size;
    json["norm_topk_prob"] = model.moe.norm_topk_prob;
  }
  switch (architecture) {
    case Architecture::llama:
      json["mlp_bias"] = false;
      json["pretraining_tp"] = 1;
      break;
    case Architecture::mixtral:
      json.erase("attention_bias");  // mixtral has no such key
      json["intermediate_size"] = model.moe.moe_intermediate_size;
      json["num_local_experts"] = model.moe.num_experts;
      json["router_jitter_noise"] = 0.0;
      json["sliding_window"] = window_of(model);
      add_routing(json, model);
      break;
    case Architecture::qwen3:
      add_window(json, model);
      break;
    case Architecture::qwen3_moe:
      add_qwen_moe(json, model);
      break;
    case Architecture::qwen2_moe:
      add_qwen_moe(json, model);
      json["shared_expert_intermediate_size"] = model.moe.shared_expert_intermediate_size;
      json["qkv_bias"] = false;
      // Here versions of transformers derive different values where there are none.
      if (model.sliding_window > 0) {
        json["layer_types"] = std::vector<std::string>(static_cast<std::size_t>(model.layers()), "sliding_attention");
      }
      break;
    case Architecture::glm4_moe:
      add_glm_moe(json, model);
      break;
    case Architecture::granitemoehybrid:
      add_granite(json, model);
      break;
  }
  return json.dump(2) + "\n";
}

std::string generation_json(const FolderFacts& facts) {
  SortedJson json = {{"_from_model_config", true}};
  add_tokens(json, facts);
  return json.dump(2) + "\n";
}

namespace {

// Without those of predictors, which transformers leaves out.
double moe_blocks(const ModelConfig& model) {
  return static_cast<double>(std::count(model.blocks.begin(), model.blocks.end() - model.mtp_depth, BlockKind::moe));
}
double choices(const ModelConfig& model) {
  return static_cast<double>(model.moe.num_experts_per_tok);
}

}  // namespace

double coefficient_from_folder(double of_folder, const ModelConfig& model) {
  return moe_blocks(model) == 0.0 ? 0.0 : of_folder * choices(model) / moe_blocks(model);
}

double coefficient_for_folder(const ModelConfig& model) {
  const double exact = model.moe.router_aux_loss_coef * moe_blocks(model) / choices(model);
  return std::stod(fmt::format("{:.15g}", exact));
}

std::string coefficient_text(const ModelConfig& model) {
  if (model.moe.router_aux_loss_coef == 0.0 || moe_blocks(model) == 0.0) return {};
  return fmt::format("router_aux_loss_coef: {} in transformers is {:.6g} in Weft: x {} choices / {} MoE blocks",
                     coefficient_for_folder(model), model.moe.router_aux_loss_coef, choices(model), moe_blocks(model));
}

}  // namespace weft
