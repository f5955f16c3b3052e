// The architectures of Hugging Face's transformers that Weft can export: which models each can express, and which
// programs load it. Plain data and pure functions. Names of tensors are in names.h, config.json in model_json.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layers/model_config.h"

namespace weft {

enum class Architecture : std::uint8_t { llama, mixtral, qwen3, qwen3_moe, qwen2_moe, glm4_moe, granitemoehybrid };
inline constexpr std::array architectures = {
    Architecture::llama,     Architecture::mixtral,  Architecture::qwen3,           Architecture::qwen3_moe,
    Architecture::qwen2_moe, Architecture::glm4_moe, Architecture::granitemoehybrid};

// Whether queries and keys are normalised; `either`: as use_qk_norm of config.json says.
enum class HeadNorms : std::uint8_t { never, always, either };
// Places of blocks without experts beside those with: anywhere (decoder_sparse_step, mlp_only_layers), or before all of
// these (first_k_dense_replace).
enum class DensePlaces : std::uint8_t { anywhere, first };
// The sliding window in config.json: none, sliding_window alone, also use_sliding_window, or also max_window_layers.
enum class WindowKeys : std::uint8_t { none, plain, switched, by_block };

struct ArchitectureTraits {
  std::string_view model_type;  // of config.json
  std::string_view class_name;  // of config.json's `architectures`
  bool dense_blocks = false, moe_blocks = false;
  DensePlaces dense_places = DensePlaces::anywhere;
  HeadNorms head_norms = HeadNorms::never;
  WindowKeys window = WindowKeys::none;
  // Of a window by block: max_window_layers where config.json has none; without a value, layer_types decide.
  std::optional<std::int64_t> first_windows = 28;
  bool always_renormalises = false;    // weights of chosen experts sum to one, whatever norm_topk_prob
  bool whole_hidden_per_head = false;  // hidden_size must be a multiple of the query heads
  bool divides_hidden = false;         // head_dim is always hidden_size / query heads
  bool head_dim_given = false;         // config.json must have head_dim; if false, that quotient is its default
  bool partial_rotary = false;         // partial_rotary_factor is 0.5 unless config.json says otherwise
  // The router of DeepSeek-V3: sigmoid scores, a selection bias, groups and a scaling factor. If false, a softmax
  // alone.
  bool sigmoid_router = false;
  bool gated_shared_expert = false;  // where it has shared experts
  bool predictors = false;           // has multi-token prediction (num_nextn_predict_layers)
  // A layer is a pair of blocks of one part: attention or a state space, then an MLP. All have experts, or none has.
  bool pairs = false;
  double rope_theta = 10000.0;  // default of its transformers class if config.json has none
  // Names: of a block, of an expert, and of a block's shared experts, which it always has; empty: none.
  std::string_view experts = "mlp.experts", router = "mlp.gate";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view shared = {};

  bool can_have_qk_norm(bool normalised) const {
    return head_norms == HeadNorms::either || (head_norms == HeadNorms::always) == normalised;
  }
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
