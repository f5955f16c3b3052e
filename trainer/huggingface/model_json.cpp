#include "trainer/huggingface/model_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

// The first version with all four architectures.
constexpr const char* transformers_version = "4.51.0";

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
      {"num_hidden_layers", model.blocks.size()},
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
  json["max_window_layers"] = model.sliding_window > 0 ? 0 : model.blocks.size();
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

}  // namespace

std::string model_json(Architecture architecture, const ModelConfig& model, const FolderFacts& facts) {
  SortedJson json = common_keys(traits_of(architecture), model, facts);
  json["intermediate_size"] = model.intermediate_size;
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
      add_window(json, model);
      add_routing(json, model);
      // Unused without dense blocks, but a width of 0 is invalid.
      if (model.intermediate_size == 0) json["intermediate_size"] = model.moe.moe_intermediate_size;
      json["num_experts"] = model.moe.num_experts;
      json["moe_intermediate_size"] = model.moe.moe_intermediate_size;
      json["norm_topk_prob"] = model.moe.norm_topk_prob;
      json["decoder_sparse_step"] = 1;
      json["mlp_only_layers"] = dense_blocks(model);
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

double moe_blocks(const ModelConfig& model) {
  return static_cast<double>(model.count(BlockKind::moe));
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
