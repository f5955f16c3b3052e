// Why an architecture cannot express a model (architecture.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/huggingface/architecture.h"

namespace weft {
namespace {

// The first block of a kind, or -1.
std::ptrdiff_t first_block(const ModelConfig& model, BlockKind kind) {
  const auto found = std::ranges::find(model.blocks, kind);
  return found == model.blocks.end() ? -1 : found - model.blocks.begin();
}

// "; mixtral, qwen3_moe and glm4_moe can": the architectures without this reason against them, of those with such
// blocks.
template <typename Can>
std::string others(const ArchitectureTraits& traits, Can can) {
  std::vector<std::string_view> names;
  for (const Architecture other : architectures) {
    if (traits_of(other).pairs != traits.pairs) continue;
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
                                  traits.model_type, width > 0 ? "has no" : "always has a", others(traits, can)));
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
  if (moe.null_copies() > 0) {
    reasons.push_back(
        fmt::format("model.moe.real_fraction is {}: {} has no null slots", moe.real_fraction, traits.model_type));
  }
  if (moe.force_balance) {
    reasons.push_back(
        fmt::format("model.moe.force_balance is true: {} chooses experts by their scores", traits.model_type));
  }
  if (moe.drops()) {
    reasons.push_back(
        fmt::format("model.moe.capacity_factor is {}: experts of {} take all choices (weights trained on "
                    "with a factor of 0 can be exported)",
                    moe.capacity_factor, traits.model_type));
  }
  if (!moe.norm_topk_prob && traits.always_renormalises) {
    reasons.push_back(
        fmt::format("model.moe.norm_topk_prob is false: {} always makes the weights of the chosen experts "
                    "sum to one{}",
                    traits.model_type, others(traits, [](const ArchitectureTraits& other) {
                      return other.moe_blocks && !other.always_renormalises;
                    })));
  }
}

void add_width_reasons(const ArchitectureTraits& traits, const ModelConfig& model, std::vector<std::string>& reasons) {
  const auto own_width = std::ranges::find_if(model.blocks, [](const ModelBlock& block) { return block.width > 0; });
  if (own_width == model.blocks.end()) return;
  reasons.push_back(fmt::format("block {} has width {} of its own (model.layers): all of {} have the same",
                                own_width - model.blocks.begin(), own_width->width, traits.model_type));
}

// Of an architecture whose layers are pairs of blocks: of these, and of their state spaces.
void add_pair_reasons(const ArchitectureTraits& traits, const ModelConfig& model, std::vector<std::string>& reasons) {
  const BlockKind kind = model.has(BlockKind::moe) ? BlockKind::moe : BlockKind::dense;
  for (std::size_t i = 0; i <= model.blocks.size(); ++i) {
    const bool is_end = i == model.blocks.size(), first = i % 2 == 0;
    if (is_end && first) break;
    const BlockKind wanted = first ? BlockKind::none : kind;
    if (!is_end && !model.blocks[i].is_whole() && model.blocks[i] == wanted) continue;
    reasons.push_back(fmt::format("block {} is {} (model.layers): the layers of {} are A or M, then {} in each", i,
                                  is_end ? "missing" : block_symbol(model.blocks[i]), traits.model_type,
                                  kind == BlockKind::moe ? "E" : "D"));
    return;
  }
  add_width_reasons(traits, model, reasons);
  for (const Mixer mixer : {Mixer::attention, Mixer::state_space}) {
    if (model.has(mixer)) continue;
    reasons.push_back(fmt::format("no block is {} (model.layers): {} mixes them with others",
                                  mixer == Mixer::attention ? "A" : "M", traits.model_type));
  }
  const StateSpaceConfig& space = model.state_space;
  if (space.n_groups != 1) {
    reasons.push_back(fmt::format("model.state_space.n_groups is {}: the gated norm of {} is over one group",
                                  space.n_groups, traits.model_type));
  }
  if (space.inner() % model.hidden_size != 0) {
    reasons.push_back(
        fmt::format("the columns of state spaces, num_heads {} x head_dim {}, are no multiple of "
                    "hidden_size {}: {} has a whole factor between them",
                    space.num_heads, space.head_dim, model.hidden_size, traits.model_type));
  }
}

// Kinds of blocks and their order.
void add_block_reasons(const ArchitectureTraits& traits, const ModelConfig& model, std::vector<std::string>& reasons) {
  if (traits.pairs) return add_pair_reasons(traits, model, reasons);
  const auto alone = std::ranges::find_if(model.blocks, [](const ModelBlock& block) { return !block.is_whole(); });
  if (alone != model.blocks.end()) {
    reasons.push_back(fmt::format("block {} is {} (model.layers): every block of {} is attention and an MLP or experts",
                                  alone - model.blocks.begin(), block_symbol(*alone), traits.model_type));
  }
  const std::ptrdiff_t dense = first_block(model, BlockKind::dense), moe = first_block(model, BlockKind::moe);
  if (dense >= 0 && !traits.dense_blocks) {
    const auto can = [](const ArchitectureTraits& other) { return other.dense_blocks && other.moe_blocks; };
    reasons.push_back(
        fmt::format("block {} is dense: {} has no dense blocks{}", dense, traits.model_type, others(traits, can)));
  }
  if (moe >= 0 && !traits.moe_blocks) {
    const auto can = [&](const ArchitectureTraits& other) {
      return other.moe_blocks && (other.dense_blocks || dense < 0);
    };
    reasons.push_back(
        fmt::format("block {} has experts: {} has dense blocks only{}", moe, traits.model_type, others(traits, can)));
  }
  if (moe < 0 && traits.moe_blocks) {
    const auto can = [](const ArchitectureTraits& other) { return !other.moe_blocks; };
    reasons.push_back(
        fmt::format("no block has experts: {} is for models that have some{}", traits.model_type, others(traits, can)));
  }
  const auto behind =
      moe < 0 ? model.blocks.end() : std::find(model.blocks.begin() + moe, model.blocks.end(), BlockKind::dense);
  if (traits.dense_places == DensePlaces::first && behind != model.blocks.end()) {
    const auto can = [](const ArchitectureTraits& other) {
      return other.dense_blocks && other.moe_blocks && other.dense_places == DensePlaces::anywhere;
    };
    reasons.push_back(fmt::format("block {} is dense behind one with experts: {} has dense blocks first{}",
                                  behind - model.blocks.begin(), traits.model_type, others(traits, can)));
  }
  add_width_reasons(traits, model, reasons);
  if (model.mtp_depth > 0 && !traits.predictors) {
    reasons.push_back(
        fmt::format("model.layers ends with m: {} has no multi-token prediction (--without-predictors "
                    "writes the model without it){}",
                    traits.model_type, others(traits, [](const auto& other) { return other.predictors; })));
  }
}

void add_attention_reasons(const ArchitectureTraits& traits, const ModelConfig& model,
                           std::vector<std::string>& reasons) {
  if (!traits.can_have_qk_norm(model.qk_norm)) {
    const auto can = [&](const ArchitectureTraits& other) { return other.can_have_qk_norm(model.qk_norm); };
    reasons.push_back(fmt::format("model.qk_norm is {}: {} {} queries and keys{}", model.qk_norm, traits.model_type,
                                  model.qk_norm ? "does not normalise" : "always normalises", others(traits, can)));
  }
  if (model.sliding_window > 0 && traits.window == WindowKeys::none) {
    const auto can = [](const ArchitectureTraits& other) { return other.window != WindowKeys::none; };
    reasons.push_back(fmt::format("model.sliding_window is {}: {} attends to all positions{}", model.sliding_window,
                                  traits.model_type, others(traits, can)));
  }
  if (traits.whole_hidden_per_head && model.hidden_size % model.num_attention_heads != 0) {
    reasons.push_back(fmt::format(
        "hidden_size {} is not a multiple of num_attention_heads {}: {} of transformers "
        "refuses that, whatever head_dim{}",
        model.hidden_size, model.num_attention_heads, traits.model_type,
        others(traits, [](const auto& other) { return !other.whole_hidden_per_head && !other.divides_hidden; })));
  }
  if (traits.divides_hidden && model.head_dim * model.num_attention_heads != model.hidden_size) {
    reasons.push_back(fmt::format("model.head_dim is {}: {} divides hidden_size {} by num_attention_heads {}{}",
                                  model.head_dim, traits.model_type, model.hidden_size, model.num_attention_heads,
                                  others(traits, [](const auto& other) { return !other.divides_hidden; })));
  }
}

}  // namespace

std::vector<std::string> reasons_against(Architecture architecture, const ModelConfig& model) {
  const ArchitectureTraits& traits = traits_of(architecture);
  std::vector<std::string> reasons;
  add_block_reasons(traits, model, reasons);
  add_attention_reasons(traits, model, reasons);
  if (model.has(BlockKind::moe) && traits.moe_blocks) add_moe_reasons(traits, model, reasons);
  return reasons;
}

}  // namespace weft
