#include "trainer/huggingface/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

// A parameter's name and its tensor's name; the tables hold names that are the same in all architectures.
struct Renamed {
  std::string_view parameter, tensor;
};
constexpr Renamed outside_blocks[] = {
    {"embedding.weight", folder_embedding}, {"head.norm.weight", "model.norm.weight"}, {"head.weight", folder_head}};
constexpr Renamed in_blocks[] = {{"attention.norm.weight", "input_layernorm.weight"},
                                 {"attention.q_proj.weight", "self_attn.q_proj.weight"},
                                 {"attention.k_proj.weight", "self_attn.k_proj.weight"},
                                 {"attention.v_proj.weight", "self_attn.v_proj.weight"},
                                 {"attention.o_proj.weight", "self_attn.o_proj.weight"},
                                 {"attention.q_norm.weight", "self_attn.q_norm.weight"},
                                 {"attention.k_norm.weight", "self_attn.k_norm.weight"},
                                 {"mlp.norm.weight", "post_attention_layernorm.weight"},
                                 {"experts.norm.weight", "post_attention_layernorm.weight"},
                                 {"mlp.gate_proj.weight", "mlp.gate_proj.weight"},
                                 {"mlp.up_proj.weight", "mlp.up_proj.weight"},
                                 {"mlp.down_proj.weight", "mlp.down_proj.weight"},
                                 {"merge.embedding.norm.weight", "enorm.weight"},
                                 {"merge.hidden.norm.weight", "hnorm.weight"},
                                 {"predict.norm.weight", "shared_head.norm.weight"}};
// Parameters that stand side by side in the columns of one tensor, in this order.
constexpr std::string_view merged[] = {"merge.embedding_proj.weight", "merge.hidden_proj.weight"};
constexpr std::string_view merged_tensor = "eh_proj.weight", bias_suffix = ".e_score_correction_bias";

// Removes `text` from the front of `name`, if present.
bool take(std::string_view& name, std::string_view text) {
  if (!name.starts_with(text)) return false;
  name.remove_prefix(text.size());
  return true;
}
std::int64_t take_number(std::string_view& name) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc()) name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  return number;
}

// A tensor of a layer of a pair of blocks (ArchitectureTraits::pairs), and the parameters below one another in it, with
// their rows.
struct PairTensor {
  const char* name;
  std::vector<std::int64_t> shape;
  std::vector<std::pair<std::string_view, std::int64_t>> parts;
};

// Of granitemoehybrid: Mamba-2, and experts with a shared MLP, or that MLP alone. Attention has the names of other
// architectures.
std::vector<PairTensor> pair_tensors(const ModelConfig& model) {
  const StateSpaceConfig& space = model.state_space;
  const std::int64_t heads = space.num_heads, inner = space.inner(), taps = space.conv_kernel;
  const std::int64_t groups = space.n_groups * space.state_size, channels = inner + 2 * groups;
  const std::int64_t hidden = model.hidden_size, width = model.intermediate_size, experts = model.moe.num_experts;
  const std::int64_t shared = model.moe.shared_expert_intermediate_size;
  return {{"mamba.in_proj.weight",
           {space.columns(), hidden},
           {{"state_space.z_proj.weight", inner},
            {"state_space.x_proj.weight", inner},
            {"state_space.b_proj.weight", groups},
            {"state_space.c_proj.weight", groups},
            {"state_space.step_proj.weight", heads}}},
          {"mamba.conv1d.weight",
           {channels, 1, taps},
           {{"state_space.x_filter", inner * taps},
            {"state_space.b_filter", groups * taps},
            {"state_space.c_filter", groups * taps}}},
          {"mamba.conv1d.bias",
           {channels},
           {{"state_space.x_bias", inner}, {"state_space.b_bias", groups}, {"state_space.c_bias", groups}}},
          {"mamba.A_log", {heads}, {{"state_space.a_log", heads}}},
          {"mamba.D", {heads}, {{"state_space.d", heads}}},
          {"mamba.dt_bias", {heads}, {{"state_space.step_bias", heads}}},
          {"mamba.norm.weight", {inner}, {{"state_space.gated_norm.weight", inner}}},
          {"mamba.out_proj.weight", {hidden, inner}, {{"state_space.out_proj.weight", hidden}}},
          {"input_layernorm.weight", {hidden}, {{"state_space.norm.weight", hidden}}},
          {"shared_mlp.input_linear.weight",
           {2 * width, hidden},
           {{"mlp.gate_proj.weight", width}, {"mlp.up_proj.weight", width}}},
          {"shared_mlp.output_linear.weight", {hidden, width}, {{"mlp.down_proj.weight", hidden}}},
          {"shared_mlp.input_linear.weight",
           {2 * shared, hidden},
           {{"shared_expert.gate_proj.weight", shared}, {"shared_expert.up_proj.weight", shared}}},
          {"shared_mlp.output_linear.weight", {hidden, shared}, {{"shared_expert.down_proj.weight", hidden}}},
          {"block_sparse_moe.router.layer.weight", {experts, hidden}, {{"router.weight", experts}}}};
}

class Renaming {
 public:
  Renaming(Architecture architecture, const ModelConfig& model, ExpertTensors experts)
      : traits_(traits_of(architecture)), model_(model), fused_(experts == ExpertTensors::fused) {
    if (traits_.pairs) pair_tensors_ = pair_tensors(model);
  }

  FolderPart part(const ParameterSpec& parameter) const {
    FolderPart part{parameter, {}, 0, parameter.global_rows, parameter.global_columns};
    if (parameter.transposed) std::swap(part.rows, part.columns);
    part.tensor_columns = part.columns;
    if (!rename(parameter.name, part)) fail("{} has no name as a {}", parameter.name, traits_.model_type);
    return part;
  }

 private:
  bool rename(std::string_view name, FolderPart& part) const {
    for (const Renamed& renamed : outside_blocks) {
      if (name == renamed.parameter) return put(part, renamed.tensor);
    }
    if (!take(name, "blocks.")) return false;
    const std::string block = fmt::format("model.layers.{}.", take_number(name) / (traits_.pairs ? 2 : 1));
    if (!take(name, ".")) return false;
    if (put_in_pair(name, block, part)) return true;
    for (const Renamed& renamed : in_blocks) {
      if (name == renamed.parameter) return put(part, block + std::string(renamed.tensor));
    }
    if (const auto* found = std::ranges::find(merged, name); found != std::end(merged)) {
      part.first_column = (found - merged) * part.columns;
      part.tensor_columns = std::ssize(merged) * part.columns;
      return put(part, block + std::string(merged_tensor));
    }
    return traits_.moe_blocks && rename_in_moe(name, block, part);
  }

  bool put_in_pair(std::string_view name, const std::string& layer, FolderPart& part) const {
    for (const auto& [tensor, shape, parameters] : pair_tensors_) {
      std::int64_t first_row = 0;
      for (const auto& [parameter, rows] : parameters) {
        if (parameter == name) {
          part.tensor = layer + tensor;
          part.shape = shape;
          part.first_row = first_row;
          return true;
        }
        first_row += rows;
      }
    }
    return false;
  }

  bool rename_in_moe(std::string_view name, const std::string& block, FolderPart& part) const {
    if (name == "router.weight") return put(part, fmt::format("{}{}.weight", block, router()));
    if (name == "router.selection_bias") return put(part, fmt::format("{}{}{}", block, router(), bias_suffix));
    if (take(name, "shared_expert")) return put(part, fmt::format("{}{}{}", block, traits_.shared, name));
    if (!take(name, "experts.")) return false;
    const std::int64_t expert = take_number(name);
    for (const auto& [ours, theirs] : {std::pair(".gate_proj.weight", traits_.gate),
                                       {".up_proj.weight", traits_.up},
                                       {".down_proj.weight", traits_.down}}) {
      if (name != ours) continue;
      if (fused_ || traits_.pairs) return put_fused(part, block, expert, name);
      return put(part, fmt::format("{}{}.{}.{}.weight", block, traits_.experts, expert, theirs));
    }
    return false;
  }

  static bool put(FolderPart& part, std::string_view tensor) {
    part.tensor = tensor;
    part.shape = {part.rows, part.tensor_columns};
    // Weights of norms and biases are vectors; matrices may also have one column.
    if (tensor.ends_with("norm.weight") || tensor.ends_with(bias_suffix)) part.shape.pop_back();
    return true;
  }
  bool put_fused(FolderPart& part, const std::string& block, std::int64_t expert, std::string_view name) const {
    const bool down = name == ".down_proj.weight";
    const std::int64_t rows = (down ? 1 : 2) * part.rows;  // of an expert
    part.first_row = expert * rows + (name == ".up_proj.weight" ? part.rows : 0);
    const char* up_name = traits_.pairs ? "block_sparse_moe.input_linear.weight" : "mlp.experts.gate_up_proj";
    const char* down_name = traits_.pairs ? "block_sparse_moe.output_linear.weight" : "mlp.experts.down_proj";
    part.tensor = block + (down ? down_name : up_name);
    part.shape = {model_.moe.num_experts, rows, part.columns};
    return true;
  }
  // With fused experts, every architecture names the layer "mlp".
  std::string_view router() const { return fused_ ? "mlp.gate" : traits_.router; }

  const ArchitectureTraits& traits_;
  const ModelConfig& model_;
  bool fused_;
  std::vector<PairTensor> pair_tensors_;  // where layers are pairs of blocks
};

}  // namespace

std::vector<FolderPart> folder_parts(Architecture architecture, const ModelConfig& model, ExpertTensors experts) {
  const Renaming renaming(architecture, model, experts);
  std::vector<FolderPart> parts;
  for (const ParameterSpec& parameter : model_parameters(model)) parts.push_back(renaming.part(parameter));
  return parts;
}

std::vector<FolderTensor> folder_tensors(Architecture architecture, const ModelConfig& model, ExpertTensors experts) {
  std::vector<FolderTensor> tensors;
  std::set<std::string_view> names;
  const auto parts = folder_parts(architecture, model, experts);
  for (const FolderPart& part : parts) {
    if (names.insert(part.tensor).second) tensors.push_back({part.tensor, part.shape});
  }
  return tensors;
}

std::vector<FolderExtra> folder_extras(Architecture architecture, const ModelConfig& model) {
  const ArchitectureTraits& traits = traits_of(architecture);
  const std::vector<std::int64_t> table = {model.vocab_size, model.hidden_size};
  std::vector<FolderExtra> extras;
  for (int block = 0; block < static_cast<int>(model.blocks.size()); ++block) {
    const std::string layer = fmt::format("model.layers.{}.", block);
    const bool experts = model.blocks[static_cast<std::size_t>(block)] == BlockKind::moe;
    if (experts && traits.sigmoid_router && !model.moe.selection_bias) {
      extras.push_back({{fmt::format("{}{}{}", layer, traits.router, bias_suffix), {model.moe.num_experts}}, ""});
    }
    if (block < model.layers()) continue;
    extras.push_back({{layer + "embed_tokens.weight", table}, folder_embedding});
    extras.push_back(
        {{layer + "shared_head.head.weight", table}, model.tie_word_embeddings ? folder_embedding : folder_head});
  }
  return extras;
}

}  // namespace weft
