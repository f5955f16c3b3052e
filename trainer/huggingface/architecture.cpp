#include "trainer/huggingface/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

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
     .window = WindowKeys::switched,
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

// The first block of a kind, or -1.
std::ptrdiff_t first_block(const ModelConfig& model, BlockKind kind) {
  const auto found = std::ranges::find(model.blocks, kind);
  return found == model.blocks.end() ? -1 : found - model.blocks.begin();
}

// Why an architecture cannot express a model, a sentence each.
struct ReasonsAgainst {
  const ArchitectureTraits& traits;
  std::vector<std::string> texts = {};

  template <typename... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    texts.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void add_if(bool holds, fmt::format_string<Args...> text, Args&&... args) {
    if (holds) add(text, std::forward<Args>(args)...);
  }

  // "; mixtral, qwen3_moe and glm4_moe can": the architectures without this reason against them, of those with such
  // blocks.
  template <typename Can>
  std::string others(Can can) const {
    std::vector<std::string_view> names;
    for (const Architecture other : architectures) {
      if (traits_of(other).pairs == traits.pairs && can(traits_of(other))) names.push_back(traits_of(other).model_type);
    }
    if (names.empty()) return "";
    const std::string_view last = names.back();
    names.pop_back();
    return fmt::format("; {}{}{} can", fmt::join(names, ", "), names.empty() ? "" : " and ", last);
  }
};

void add_shared_expert_reasons(const MoeConfig& moe, ReasonsAgainst& reasons) {
  const ArchitectureTraits& traits = reasons.traits;
  const std::int64_t width = moe.shared_expert_intermediate_size;
  const auto can = [&](const ArchitectureTraits& other) {
    return other.moe_blocks && other.shared.empty() != traits.shared.empty();
  };
  reasons.add_if((width > 0) == traits.shared.empty(),
                 "model.moe.shared_expert_intermediate_size is {}: {} {} shared expert{}", width, traits.model_type,
                 width > 0 ? "has no" : "always has a", reasons.others(can));
  if (width == 0 || traits.shared.empty()) return;
  reasons.add_if(moe.shared_expert_gate != traits.gated_shared_expert,
                 "model.moe.shared_expert_gate is {}: {} {} gates its shared expert", moe.shared_expert_gate,
                 traits.model_type, traits.gated_shared_expert ? "always" : "never");
  reasons.add_if(traits.sigmoid_router && width % moe.moe_intermediate_size != 0,
                 "model.moe.shared_expert_intermediate_size is {}: {} has whole shared experts, each as wide as a "
                 "routed one, {}",
                 width, traits.model_type, moe.moe_intermediate_size);
}

void add_router_reasons(const MoeConfig& moe, ReasonsAgainst& reasons) {
  const ArchitectureTraits& traits = reasons.traits;
  const Scoring scoring = traits.sigmoid_router ? Scoring::sigmoid : Scoring::softmax;
  reasons.add_if(moe.scoring != scoring, "model.moe.scoring is \"{}\": {} scores experts by {}", name_of(moe.scoring),
                 traits.model_type, name_of(scoring));
  if (traits.sigmoid_router) {
    reasons.add_if(moe.n_group > 1 && moe.num_experts / moe.n_group < 2,
                   "model.moe.n_group is {} of {} experts: {} adds the scores of two experts a group", moe.n_group,
                   moe.num_experts, traits.model_type);
    return;
  }
  reasons.add_if(moe.selection_bias, "model.moe.selection_bias is true: {} chooses experts by their scores alone",
                 traits.model_type);
  reasons.add_if(moe.n_group != moe.topk_group,
                 "model.moe.topk_group is {} of n_group {}: {} chooses among all experts", moe.topk_group, moe.n_group,
                 traits.model_type);
  reasons.add_if(moe.routed_scaling_factor != 1.0,
                 "model.moe.routed_scaling_factor is {}: {} does not scale the experts' weights",
                 moe.routed_scaling_factor, traits.model_type);
}

void add_moe_reasons(const MoeConfig& moe, ReasonsAgainst& reasons) {
  const ArchitectureTraits& traits = reasons.traits;
  add_shared_expert_reasons(moe, reasons);
  add_router_reasons(moe, reasons);
  reasons.add_if(moe.null_copies() > 0, "model.moe.real_fraction is {}: {} has no null slots", moe.real_fraction,
                 traits.model_type);
  reasons.add_if(moe.force_balance, "model.moe.force_balance is true: {} chooses experts by their scores",
                 traits.model_type);
  reasons.add_if(moe.drops(),
                 "model.moe.capacity_factor is {}: experts of {} take all choices (weights trained on with a factor of "
                 "0 can be exported)",
                 moe.capacity_factor, traits.model_type);
  const auto can = [](const ArchitectureTraits& other) { return other.moe_blocks && !other.always_renormalises; };
  reasons.add_if(!moe.norm_topk_prob && traits.always_renormalises,
                 "model.moe.norm_topk_prob is false: {} always makes the weights of the chosen experts sum to one{}",
                 traits.model_type, reasons.others(can));
}

void add_width_reasons(const ModelConfig& model, ReasonsAgainst& reasons) {
  const auto own_width = std::ranges::find_if(model.blocks, [](const ModelBlock& block) { return block.width > 0; });
  if (own_width == model.blocks.end()) return;
  reasons.add("block {} has width {} of its own (model.layers): all of {} have the same",
              own_width - model.blocks.begin(), own_width->width, reasons.traits.model_type);
}

// Of an architecture whose layers are pairs of blocks: of these, and of their state spaces.
void add_pair_reasons(const ModelConfig& model, ReasonsAgainst& reasons) {
  const ArchitectureTraits& traits = reasons.traits;
  const BlockKind kind = model.has(BlockKind::moe) ? BlockKind::moe : BlockKind::dense;
  for (std::size_t i = 0; i <= model.blocks.size(); ++i) {
    const bool is_end = i == model.blocks.size(), first = i % 2 == 0;
    if (is_end && first) break;
    const BlockKind wanted = first ? BlockKind::none : kind;
    if (!is_end && !model.blocks[i].is_whole() && model.blocks[i] == wanted) continue;
    return reasons.add("block {} is {} (model.layers): the layers of {} are A or M, then {} in each", i,
                       is_end ? "missing" : block_symbol(model.blocks[i]), traits.model_type,
                       kind == BlockKind::moe ? "E" : "D");
  }
  add_width_reasons(model, reasons);
  for (const Mixer mixer : {Mixer::attention, Mixer::state_space}) {
    reasons.add_if(!model.has(mixer), "no block is {} (model.layers): {} mixes them with others",
                   mixer == Mixer::attention ? "A" : "M", traits.model_type);
  }
  const StateSpaceConfig& space = model.state_space;
  reasons.add_if(space.n_groups != 1, "model.state_space.n_groups is {}: the gated norm of {} is over one group",
                 space.n_groups, traits.model_type);
  reasons.add_if(space.inner() % model.hidden_size != 0,
                 "the columns of state spaces, num_heads {} x head_dim {}, are no multiple of hidden_size {}: {} has a "
                 "whole factor between them",
                 space.num_heads, space.head_dim, model.hidden_size, traits.model_type);
}

// Kinds of blocks and their order.
void add_block_reasons(const ModelConfig& model, ReasonsAgainst& reasons) {
  const ArchitectureTraits& traits = reasons.traits;
  if (traits.pairs) return add_pair_reasons(model, reasons);
  const auto alone = std::ranges::find_if(model.blocks, [](const ModelBlock& block) { return !block.is_whole(); });
  if (alone != model.blocks.end()) {
    reasons.add("block {} is {} (model.layers): every block of {} is attention and an MLP or experts",
                alone - model.blocks.begin(), block_symbol(*alone), traits.model_type);
  }
  const std::ptrdiff_t dense = first_block(model, BlockKind::dense), moe = first_block(model, BlockKind::moe);
  const auto has_both = [](const ArchitectureTraits& other) { return other.dense_blocks && other.moe_blocks; };
  reasons.add_if(dense >= 0 && !traits.dense_blocks, "block {} is dense: {} has no dense blocks{}", dense,
                 traits.model_type, reasons.others(has_both));
  const auto has_experts = [&](const auto& other) { return other.moe_blocks && (other.dense_blocks || dense < 0); };
  reasons.add_if(moe >= 0 && !traits.moe_blocks, "block {} has experts: {} has dense blocks only{}", moe,
                 traits.model_type, reasons.others(has_experts));
  reasons.add_if(moe < 0 && traits.moe_blocks, "no block has experts: {} is for models that have some{}",
                 traits.model_type, reasons.others([](const auto& other) { return !other.moe_blocks; }));
  const auto behind =
      moe < 0 ? model.blocks.end() : std::find(model.blocks.begin() + moe, model.blocks.end(), BlockKind::dense);
  const auto mixes = [&](const auto& other) { return has_both(other) && other.dense_places == DensePlaces::anywhere; };
  reasons.add_if(traits.dense_places == DensePlaces::first && behind != model.blocks.end(),
                 "block {} is dense behind one with experts: {} has dense blocks first{}",
                 behind - model.blocks.begin(), traits.model_type, reasons.others(mixes));
  add_width_reasons(model, reasons);
  reasons.add_if(model.mtp_depth > 0 && !traits.predictors,
                 "model.layers ends with m: {} has no multi-token prediction (--without-predictors writes the model "
                 "without it){}",
                 traits.model_type, reasons.others([](const auto& other) { return other.predictors; }));
}

void add_attention_reasons(const ModelConfig& model, ReasonsAgainst& reasons) {
  const ArchitectureTraits& traits = reasons.traits;
  reasons.add_if(!traits.can_have_qk_norm(model.qk_norm), "model.qk_norm is {}: {} {} queries and keys{}",
                 model.qk_norm, traits.model_type, model.qk_norm ? "does not normalise" : "always normalises",
                 reasons.others([&](const auto& other) { return other.can_have_qk_norm(model.qk_norm); }));
  reasons.add_if(model.sliding_window > 0 && traits.window == WindowKeys::none,
                 "model.sliding_window is {}: {} attends to all positions{}", model.sliding_window, traits.model_type,
                 reasons.others([](const auto& other) { return other.window != WindowKeys::none; }));
  const auto divides_none = [](const auto& other) { return !other.whole_hidden_per_head && !other.divides_hidden; };
  reasons.add_if(traits.whole_hidden_per_head && model.hidden_size % model.num_attention_heads != 0,
                 "hidden_size {} is not a multiple of num_attention_heads {}: {} of transformers refuses that, "
                 "whatever head_dim{}",
                 model.hidden_size, model.num_attention_heads, traits.model_type, reasons.others(divides_none));
  reasons.add_if(traits.divides_hidden && model.head_dim * model.num_attention_heads != model.hidden_size,
                 "model.head_dim is {}: {} divides hidden_size {} by num_attention_heads {}{}", model.head_dim,
                 traits.model_type, model.hidden_size, model.num_attention_heads,
                 reasons.others([](const auto& other) { return !other.divides_hidden; }));
}

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

std::vector<std::string> reasons_against(Architecture architecture, const ModelConfig& model) {
  ReasonsAgainst reasons{traits_of(architecture)};
  add_block_reasons(model, reasons);
  add_attention_reasons(model, reasons);
  if (model.has(BlockKind::moe) && reasons.traits.moe_blocks) add_moe_reasons(model.moe, reasons);
  return reasons.texts;
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
