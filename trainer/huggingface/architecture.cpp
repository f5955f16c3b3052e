#include "trainer/huggingface/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr ArchitectureTraits llama_traits = {
    .model_type = "llama", .class_name = "LlamaForCausalLM", .dense_blocks = true, .whole_hidden_per_head = true};
constexpr ArchitectureTraits mixtral_traits = {.model_type = "mixtral",
                                               .class_name = "MixtralForCausalLM",
                                               .moe_blocks = true,
                                               .window = WindowKeys::plain,
                                               .always_renormalises = true,
                                               .rope_theta = 1e6,
                                               .experts = "block_sparse_moe.experts",
                                               .router = "block_sparse_moe.gate",
                                               .gate = "w1",
                                               .up = "w3",
                                               .down = "w2"};
constexpr ArchitectureTraits qwen3_traits = {.model_type = "qwen3",
                                             .class_name = "Qwen3ForCausalLM",
                                             .dense_blocks = true,
                                             .head_norms = HeadNorms::always,
                                             .window = WindowKeys::by_block,
                                             .head_dim_given = true};
constexpr ArchitectureTraits qwen3_moe_traits = {.model_type = "qwen3_moe",
                                                 .class_name = "Qwen3MoeForCausalLM",
                                                 .dense_blocks = true,
                                                 .moe_blocks = true,
                                                 .head_norms = HeadNorms::always,
                                                 .window = WindowKeys::by_block,
                                                 .head_dim_given = true,
                                                 .experts = "mlp.experts",
                                                 .router = "mlp.gate",
                                                 .gate = "gate_proj",
                                                 .up = "up_proj",
                                                 .down = "down_proj"};
constexpr ArchitectureTraits qwen2_moe_traits = {.model_type = "qwen2_moe",
                                                 .class_name = "Qwen2MoeForCausalLM",
                                                 .dense_blocks = true,
                                                 .moe_blocks = true,
                                                 .window = WindowKeys::by_block,
                                                 .divides_hidden = true,
                                                 .gated_shared_expert = true,
                                                 .experts = "mlp.experts",
                                                 .router = "mlp.gate",
                                                 .gate = "gate_proj",
                                                 .up = "up_proj",
                                                 .down = "down_proj",
                                                 .shared = "mlp.shared_expert"};
constexpr ArchitectureTraits glm4_moe_traits = {.model_type = "glm4_moe",
                                                .class_name = "Glm4MoeForCausalLM",
                                                .dense_blocks = true,
                                                .moe_blocks = true,
                                                .dense_places = DensePlaces::first,
                                                .head_norms = HeadNorms::either,
                                                .partial_rotary = true,
                                                .sigmoid_router = true,
                                                .predictors = true,
                                                .experts = "mlp.experts",
                                                .router = "mlp.gate",
                                                .gate = "gate_proj",
                                                .up = "up_proj",
                                                .down = "down_proj",
                                                .shared = "mlp.shared_experts"};

// The first block of a kind, or -1.
std::ptrdiff_t first_block(const ModelConfig& model, BlockKind kind) {
  const auto found = std::ranges::find(model.blocks, kind);
  return found == model.blocks.end() ? -1 : found - model.blocks.begin();
}

// "; mixtral, qwen3_moe and glm4_moe can": the architectures without this reason against them.
template <typename Can>
std::string others(Can can) {
  std::vector<std::string_view> names;
  for (const Architecture other : architectures) {
    if (can(traits_of(other))) names.push_back(traits_of(other).model_type);
  }
  if (names.empty()) return "";
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("; {}{}{} can", fmt::join(names, ", "), names.empty() ? "" : " and ", last);
}

void add_shared_expert_reasons(const ArchitectureTraits& traits, const MoeConfig& moe,
                               std::vector<std::string>& reasons) {
  const std::int64_t width = moe.shared_expert_intermediate_size;
  if ((width > 0) == traits.shared.empty()) {
    const auto can = [&](const ArchitectureTraits& other) {
      return other.moe_blocks && other.shared.empty() != traits.shared.empty();
    };
    reasons.push_back(fmt::format("model.moe.shared_expert_intermediate_size is {}: {} {} shared expert{}", width,
                                  traits.model_type, width > 0 ? "has no" : "always has a", others(can)));
  }
  if (width == 0 || traits.shared.empty()) return;
  if (moe.shared_expert_gate != traits.gated_shared_expert) {
    reasons.push_back(fmt::format("model.moe.shared_expert_gate is {}: {} {} gates its shared expert",
                                  moe.shared_expert_gate, traits.model_type,
                                  traits.gated_shared_expert ? "always" : "never"));
  }
  if (traits.sigmoid_router && width % moe.moe_intermediate_size != 0) {
    reasons.push_back(
        fmt::format("model.moe.shared_expert_intermediate_size is {}: {} has whole shared experts, each as wide as a "
                    "routed one, {}",
                    width, traits.model_type, moe.moe_intermediate_size));
  }
}

void add_router_reasons(const ArchitectureTraits& traits, const MoeConfig& moe, std::vector<std::string>& reasons) {
  const Scoring scoring = traits.sigmoid_router ? Scoring::sigmoid : Scoring::softmax;
  if (moe.scoring != scoring) {
    reasons.push_back(fmt::format("model.moe.scoring is \"{}\": {} scores experts by {}", name_of(moe.scoring),
                                  traits.model_type, name_of(scoring)));
  }
  if (traits.sigmoid_router) {
    if (moe.n_group > 1 && moe.num_experts / moe.n_group < 2) {
      reasons.push_back(fmt::format("model.moe.n_group is {} of {} experts: {} adds the scores of two experts a group",
                                    moe.n_group, moe.num_experts, traits.model_type));
    }
    return;
  }
  if (moe.selection_bias) {
    reasons.push_back(
        fmt::format("model.moe.selection_bias is true: {} chooses experts by their scores alone", traits.model_type));
  }
  if (moe.n_group != moe.topk_group) {
    reasons.push_back(fmt::format("model.moe.topk_group is {} of n_group {}: {} chooses among all experts",
                                  moe.topk_group, moe.n_group, traits.model_type));
  }
  if (moe.routed_scaling_factor != 1.0) {
    reasons.push_back(fmt::format("model.moe.routed_scaling_factor is {}: {} does not scale the experts' weights",
                                  moe.routed_scaling_factor, traits.model_type));
  }
}

void add_moe_reasons(const ArchitectureTraits& traits, const ModelConfig& model, std::vector<std::string>& reasons) {
  const MoeConfig& moe = model.moe;
  add_shared_expert_reasons(traits, moe, reasons);
  add_router_reasons(traits, moe, reasons);
  if (moe.force_balance) {
    reasons.push_back(
        fmt::format("model.moe.force_balance is true: {} chooses experts by their scores", traits.model_type));
  }
  if (!moe.norm_topk_prob && traits.always_renormalises) {
    reasons.push_back(fmt::format(
        "model.moe.norm_topk_prob is false: {} always makes the weights of the chosen experts "
        "sum to one{}",
        traits.model_type,
        others([](const ArchitectureTraits& other) { return other.moe_blocks && !other.always_renormalises; })));
  }
}

// What blocks there are and in which order.
void add_block_reasons(const ArchitectureTraits& traits, const ModelConfig& model, std::vector<std::string>& reasons) {
  const std::ptrdiff_t dense = first_block(model, BlockKind::dense), moe = first_block(model, BlockKind::moe);
  if (dense >= 0 && !traits.dense_blocks) {
    const auto can = [](const ArchitectureTraits& other) { return other.dense_blocks && other.moe_blocks; };
    reasons.push_back(
        fmt::format("block {} is dense: {} has no dense blocks{}", dense, traits.model_type, others(can)));
  }
  if (moe >= 0 && !traits.moe_blocks) {
    const auto can = [&](const ArchitectureTraits& other) {
      return other.moe_blocks && (other.dense_blocks || dense < 0);
    };
    reasons.push_back(
        fmt::format("block {} has experts: {} has dense blocks only{}", moe, traits.model_type, others(can)));
  }
  if (moe < 0 && traits.moe_blocks) {
    const auto can = [](const ArchitectureTraits& other) { return !other.moe_blocks; };
    reasons.push_back(
        fmt::format("no block has experts: {} is for models that have some{}", traits.model_type, others(can)));
  }
  const auto behind =
      moe < 0 ? model.blocks.end() : std::find(model.blocks.begin() + moe, model.blocks.end(), BlockKind::dense);
  if (traits.dense_places == DensePlaces::first && behind != model.blocks.end()) {
    const auto can = [](const ArchitectureTraits& other) {
      return other.dense_blocks && other.moe_blocks && other.dense_places == DensePlaces::anywhere;
    };
    reasons.push_back(fmt::format("block {} is dense behind one with experts: {} has dense blocks first{}",
                                  behind - model.blocks.begin(), traits.model_type, others(can)));
  }
  const auto own_width = std::ranges::find_if(model.blocks, [](const ModelBlock& block) { return block.width > 0; });
  if (own_width != model.blocks.end()) {
    reasons.push_back(fmt::format("block {} has width {} of its own (model.layers): all of {} have the same",
                                  own_width - model.blocks.begin(), own_width->width, traits.model_type));
  }
  if (model.mtp_depth > 0 && !traits.predictors) {
    reasons.push_back(
        fmt::format("model.layers ends with m: {} has no multi-token prediction (--without-predictors "
                    "writes the model without it){}",
                    traits.model_type, others([](const auto& other) { return other.predictors; })));
  }
}

void add_attention_reasons(const ArchitectureTraits& traits, const ModelConfig& model,
                           std::vector<std::string>& reasons) {
  if (!traits.can_have_qk_norm(model.qk_norm)) {
    const auto can = [&](const ArchitectureTraits& other) { return other.can_have_qk_norm(model.qk_norm); };
    reasons.push_back(fmt::format("model.qk_norm is {}: {} {} queries and keys{}", model.qk_norm, traits.model_type,
                                  model.qk_norm ? "does not normalise" : "always normalises", others(can)));
  }
  if (model.sliding_window > 0 && traits.window == WindowKeys::none) {
    const auto can = [](const ArchitectureTraits& other) { return other.window != WindowKeys::none; };
    reasons.push_back(fmt::format("model.sliding_window is {}: {} attends to all positions{}", model.sliding_window,
                                  traits.model_type, others(can)));
  }
  if (traits.whole_hidden_per_head && model.hidden_size % model.num_attention_heads != 0) {
    reasons.push_back(
        fmt::format("hidden_size {} is not a multiple of num_attention_heads {}: {} of transformers "
                    "refuses that, whatever head_dim{}",
                    model.hidden_size, model.num_attention_heads, traits.model_type,
                    others([](const auto& other) { return !other.whole_hidden_per_head && !other.divides_hidden; })));
  }
  if (traits.divides_hidden && model.head_dim * model.num_attention_heads != model.hidden_size) {
    reasons.push_back(fmt::format("model.head_dim is {}: {} divides hidden_size {} by num_attention_heads {}{}",
                                  model.head_dim, traits.model_type, model.hidden_size, model.num_attention_heads,
                                  others([](const auto& other) { return !other.divides_hidden; })));
  }
}

}  // namespace

const ArchitectureTraits& traits_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
      return llama_traits;
    case Architecture::mixtral:
      return mixtral_traits;
    case Architecture::qwen3:
      return qwen3_traits;
    case Architecture::qwen3_moe:
      return qwen3_moe_traits;
    case Architecture::qwen2_moe:
      return qwen2_moe_traits;
    case Architecture::glm4_moe:
      return glm4_moe_traits;
  }
  fail("no architecture {}", static_cast<int>(architecture));
}

Architecture architecture_of(std::string_view model_type) {
  std::vector<std::string_view> names;
  for (const Architecture architecture : architectures) {
    names.push_back(traits_of(architecture).model_type);
    if (names.back() == model_type) return architecture;
  }
  fail_request("\"{}\" is not an architecture that Weft knows: {}", model_type, fmt::join(names, ", "));
}

std::vector<std::string> reasons_against(Architecture architecture, const ModelConfig& model) {
  const ArchitectureTraits& traits = traits_of(architecture);
  std::vector<std::string> reasons;
  add_block_reasons(traits, model, reasons);
  add_attention_reasons(traits, model, reasons);
  if (model.has(BlockKind::moe) && traits.moe_blocks) add_moe_reasons(traits, model, reasons);
  return reasons;
}

Architecture choose_architecture(const ModelConfig& model) {
  std::string text = "no architecture of transformers that Weft writes can express this model:";
  for (const Architecture architecture : architectures) {
    const auto reasons = reasons_against(architecture, model);
    if (reasons.empty()) return architecture;
    text += fmt::format("\n  {}: {}", traits_of(architecture).model_type, fmt::join(reasons, "\n    and "));
  }
  throw Error(ErrorKind::request, text);
}

// According to the sources of the three: transformers' modeling files, vLLM's model_executor/models, and llama.cpp's
// conversion script and src/models.
std::vector<Loader> loaders_of(Architecture architecture, const ModelConfig& model) {
  const auto against = reasons_against(architecture, model);
  if (!against.empty()) {
    const std::string reason = fmt::format("the model is not one of {}", traits_of(architecture).model_type);
    return {{"transformers", false, reason}, {"vLLM", false, reason}, {"llama.cpp", false, reason}};
  }
  const ArchitectureTraits& traits = traits_of(architecture);
  const bool qwen3 = traits.head_norms == HeadNorms::always, glm = architecture == Architecture::glm4_moe;
  const std::ptrdiff_t dense = first_block(model, BlockKind::dense);
  const bool mixed = traits.moe_blocks && traits.dense_places == DensePlaces::anywhere && dense >= 0;
  Loader transformers{"transformers", true, qwen3 ? "from version 4.51" : ""};
  if (architecture == Architecture::qwen2_moe) transformers.reason = "from the version that reads qkv_bias";
  if (glm) transformers.reason = "from version 4.54; it leaves predictors out";
  const std::string named = fmt::format("its {} builds the dense blocks that mlp_only_layers names", traits.model_type);
  Loader vllm{"vLLM", true, mixed ? named : ""};
  Loader llama_cpp{"llama.cpp", true, "converted by its convert_hf_to_gguf.py, which needs the files of a tokenizer"};
  if (mixed) {
    llama_cpp = {"llama.cpp", false,
                 fmt::format("block {} is dense: its {} expects experts in every block", dense,
                             architecture == Architecture::qwen3_moe ? "qwen3moe" : "qwen2moe")};
  }
  if (glm) llama_cpp = {"llama.cpp", false, "its converter expects the special tokens of GLM's tokenizer"};
  if (model.sliding_window > 0) {
    llama_cpp = {"llama.cpp", false, "its graph of this architecture attends to all positions"};
  }
  return {transformers, vllm, llama_cpp};
}

}  // namespace weft
