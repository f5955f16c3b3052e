// The architectures of Hugging Face's transformers that a model of Weft can be written as, what each can express, and
// which programs load it. Plain data and pure functions; names of tensors are in names.h, config.json in model_json.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layers/model_config.h"

namespace weft {

enum class Architecture : std::uint8_t { llama, mixtral, qwen3, qwen3_moe };
inline constexpr std::array architectures = {Architecture::llama, Architecture::mixtral, Architecture::qwen3,
                                             Architecture::qwen3_moe};

struct ArchitectureTraits {
  std::string_view model_type;  // of config.json
  std::string_view class_name;  // of config.json's `architectures`
  bool dense_blocks = false, moe_blocks = false;
  bool qk_norm = false;                            // has it, and cannot do without
  bool always_renormalises = false;                // weights of the chosen experts sum to one, whatever norm_topk_prob
  bool whole_hidden_per_head = false;              // hidden_size must be a multiple of the query heads
  double rope_theta = 10000.0;                     // what its class of transformers takes where config.json is silent
  std::string_view experts = {}, router = {};      // of a block: "mlp.experts", "mlp.gate"
  std::string_view gate = {}, up = {}, down = {};  // of an expert
};
const ArchitectureTraits& traits_of(Architecture architecture);
// By model_type. Throws Error (request) with the list of those there are.
Architecture architecture_of(std::string_view model_type);

// Why a model cannot be written as an architecture without becoming another model, a sentence each; none: it can.
std::vector<std::string> reasons_against(Architecture architecture, const ModelConfig& model);
// The one that can express the model. Throws Error (request) with the reasons against each where none can.
Architecture choose_architecture(const ModelConfig& model);

// A program that reads exported folders, as far as its source says.
struct Loader {
  std::string name;
  bool loads = false;
  std::string reason;  // why not, or what it takes
};
std::vector<Loader> loaders_of(Architecture architecture, const ModelConfig& model);

}  // namespace weft
