#include "trainer/huggingface/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// In the order of Architecture.
constexpr ArchitectureTraits traits_by_architecture[] = {
    {.model_type = "llama", .class_name = "LlamaForCausalLM", .dense_blocks = true, .whole_hidden_per_head = true},
    {.model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .moe_blocks = true,
     .window = WindowKeys::plain,
     .always_renormalises = true,
     .rope_theta = 1e6,
     .experts = "block_sparse_moe.experts",
     .router = "block_sparse_moe.gate",
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .dense_blocks = true,
     .head_norms = HeadNorms::always,
     .window = WindowKeys::by_block,
     .head_dim_given = true},
    {.model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .dense_blocks = true,
     .moe_blocks = true,
     .head_norms = HeadNorms::always,
     .window = WindowKeys::by_block,
     .first_windows = 0,
     .head_dim_given = true},
    {.model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .dense_blocks = true,
     .moe_blocks = true,
     .window = WindowKeys::by_block,
     .first_windows = std::nullopt,
     .divides_hidden = true,
     .gated_shared_expert = true,
     .shared = "mlp.shared_expert"},
    {.model_type = "glm4_moe",
     .class_name = "Glm4MoeForCausalLM",
     .dense_blocks = true,
     .moe_blocks = true,
     .dense_places = DensePlaces::first,
     .head_norms = HeadNorms::either,
     .partial_rotary = true,
     .sigmoid_router = true,
     .predictors = true,
     .shared = "mlp.shared_experts"},
    {.model_type = "granitemoehybrid",
     .class_name = "GraniteMoeHybridForCausalLM",
     .dense_blocks = true,
     .moe_blocks = true,
     .always_renormalises = true,
     .divides_hidden = true,
     .pairs = true,
     .shared = "shared_mlp"},
};
static_assert(std::size(traits_by_architecture) == architectures.size());

}  // namespace

const ArchitectureTraits& traits_of(Architecture architecture) {
  return traits_by_architecture[static_cast<std::size_t>(architecture)];
}

Architecture architecture_of(std::string_view model_type) {
  std::vector<std::string_view> names;
  for (const Architecture architecture : architectures) {
    names.push_back(traits_of(architecture).model_type);
    if (names.back() == model_type) return architecture;
  }
  fail_request("\"{}\" is not an architecture that Weft knows: {}", model_type, fmt::join(names, ", "));
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
  const auto first_dense = std::ranges::find(model.blocks, BlockKind::dense);
  const std::ptrdiff_t dense = first_dense == model.blocks.end() ? -1 : first_dense - model.blocks.begin();
  const bool mixed = traits.moe_blocks && traits.dense_places == DensePlaces::anywhere && !traits.pairs && dense >= 0;
  Loader transformers{"transformers", true, qwen3 ? "from version 4.51" : ""};
  if (architecture == Architecture::qwen2_moe) transformers.reason = "from the version that reads qkv_bias";
  if (glm) transformers.reason = "from version 4.54; it leaves predictors out";
  if (traits.pairs) transformers.reason = "tried with version 5.24";
  const std::string named = fmt::format("its {} builds the dense blocks that mlp_only_layers names", traits.model_type);
  Loader vllm{"vLLM", true, mixed ? named : ""};
  if (traits.pairs) vllm.reason = "its granitemoehybrid knows layers by their names of transformers 4";
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
