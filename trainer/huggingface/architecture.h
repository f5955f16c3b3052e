// The architectures of Hugging Face's transformers that Weft can export: which models each can express, and which
// programs load it. Plain data and pure functions. Names of tensors are in names.h, config.json in model_json.h.
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
  bool qk_norm = false;                            // queries and keys are always normalised; if false, never
  bool window = false;                             // has sliding_window
  bool always_renormalises = false;                // weights of chosen experts sum to one, whatever norm_topk_prob
  bool whole_hidden_per_head = false;              // hidden_size must be a multiple of the query heads
  double rope_theta = 10000.0;                     // default of its transformers class if config.json has none
  std::string_view experts = {}, router = {};      // of a block: "mlp.experts", "mlp.gate"
  std::string_view gate = {}, up = {}, down = {};  // of an expert
};
const ArchitectureTraits& traits_of(Architecture architecture);
// Finds by model_type. Throws Error (request) with the list of known types.
Architecture architecture_of(std::string_view model_type);

// Why a model cannot be written as an architecture without change, one sentence per reason; empty if it can.
std::vector<std::string> reasons_against(Architecture architecture, const ModelConfig& model);
// The architecture that can express the model. Throws Error (request) with the reasons against each if none can.
Architecture choose_architecture(const ModelConfig& model);

// A program that reads exported folders, according to its source.
struct Loader {
  std::string name;
  bool loads = false;
  std::string reason;  // why it does not load, or its conditions
};
std::vector<Loader> loaders_of(Architecture architecture, const ModelConfig& model);

}  // namespace weft
