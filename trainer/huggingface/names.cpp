#include "trainer/huggingface/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
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

// Tensors of layers of granitemoehybrid: attention or Mamba-2, then experts with a shared MLP, or that MLP alone. Parts
// of one tensor stand below one another.
class Pair {
 public:
  Pair(std::string_view name, const std::string& layer, FolderPart& part) : name_(name), layer_(layer), part_(part) {}

  // Whether the parameter is one of these; `rows` of each.
  bool put(const char* tensor, std::vector<std::int64_t> shape,
           std::initializer_list<std::pair<std::string_view, std::int64_t>> parts) {
    std::int64_t first_row = 0;
    for (const auto& [name, rows] : parts) {
      if (name == name_) return put(tensor, std::move(shape), first_row);
      first_row += rows;
    }
    return false;
  }
  bool put(const char* tensor, std::vector<std::int64_t> shape, std::int64_t first_row) {
    part_.tensor = layer_ + tensor;
    part_.shape = std::move(shape);
    part_.first_row = first_row;
    return true;
  }

 private:
  std::string_view name_;
  const std::string& layer_;
  FolderPart& part_;
};

bool put_state_space(const ModelConfig& model, Pair& pair) {
  const StateSpaceConfig& space = model.state_space;
  const std::int64_t heads = space.num_heads, inner = space.inner(), taps = space.conv_kernel;
  const std::int64_t shared = space.n_groups * space.state_size, channels = inner + 2 * shared;
  return pair.put("mamba.in_proj.weight", {space.columns(), model.hidden_size},
                  {{"state_space.z_proj.weight", inner},
                   {"state_space.x_proj.weight", inner},
                   {"state_space.b_proj.weight", shared},
                   {"state_space.c_proj.weight", shared},
                   {"state_space.step_proj.weight", heads}}) ||
         pair.put("mamba.conv1d.weight", {channels, 1, taps},
                  {{"state_space.x_filter", inner * taps},
                   {"state_space.b_filter", shared * taps},
                   {"state_space.c_filter", shared * taps}}) ||
         pair.put("mamba.conv1d.bias", {channels},
                  {{"state_space.x_bias", inner}, {"state_space.b_bias", shared}, {"state_space.c_bias", shared}}) ||
         pair.put("mamba.A_log", {heads}, {{"state_space.a_log", heads}}) ||
         pair.put("mamba.D", {heads}, {{"state_space.d", heads}}) ||
         pair.put("mamba.dt_bias", {heads}, {{"state_space.step_bias", heads}}) ||
         pair.put("mamba.norm.weight", {inner}, {{"state_space.gated_norm.weight", inner}}) ||
         pair.put("mamba.out_proj.weight", {model.hidden_size, inner}, {{"state_space.out_proj.weight", inner}}) ||
         pair.put("input_layernorm.weight", {model.hidden_size}, {{"state_space.norm.weight", model.hidden_size}});
}

// An MLP, or the shared expert; `width` inside.
bool put_shared(const ModelConfig& model, std::int64_t width, std::string_view gate, std::string_view up,
                std::string_view down, Pair& pair) {
  return pair.put("shared_mlp.input_linear.weight", {2 * width, model.hidden_size}, {{gate, width}, {up, width}}) ||
         pair.put("shared_mlp.output_linear.weight", {model.hidden_size, width}, {{down, width}});
}

bool put_expert(const ModelConfig& model, std::string_view name, Pair& pair) {
  constexpr std::string_view experts = "experts.";
  if (!name.starts_with(experts)) return false;
  std::int64_t expert = 0;
  const char* begin = name.data() + experts.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), expert);
  if (end == begin || error != std::errc()) return false;
  const std::string_view which(end, static_cast<std::size_t>(name.data() + name.size() - end));
  const std::int64_t width = model.moe.moe_intermediate_size, hidden = model.hidden_size;
  if (which == ".down_proj.weight") {
    return pair.put("block_sparse_moe.output_linear.weight", {model.moe.num_experts, hidden, width}, expert * hidden);
  }
  const std::int64_t first = 2 * expert * width + (which == ".up_proj.weight" ? width : 0);
  return pair.put("block_sparse_moe.input_linear.weight", {model.moe.num_experts, 2 * width, hidden}, first);
}

// Names the part of a parameter in a layer of a pair of blocks (ArchitectureTraits::pairs). `name` lacks the number of
// its block, `layer` is the beginning of the tensor's name. False if the layer has it under the name of other
// architectures.
bool put_in_pair(const ModelConfig& model, std::string_view name, const std::string& layer, FolderPart& part) {
  Pair pair(name, layer, part);
  const MoeConfig& moe = model.moe;
  return put_state_space(model, pair) || put_expert(model, name, pair) ||
         put_shared(model, model.intermediate_size, "mlp.gate_proj.weight", "mlp.up_proj.weight",
                    "mlp.down_proj.weight", pair) ||
         put_shared(model, moe.shared_expert_intermediate_size, "shared_expert.gate_proj.weight",
                    "shared_expert.up_proj.weight", "shared_expert.down_proj.weight", pair) ||
         pair.put("block_sparse_moe.router.layer.weight", {moe.num_experts, model.hidden_size},
                  {{"router.weight", moe.num_experts}});
}

class Renaming {
 public:
  Renaming(Architecture architecture, const ModelConfig& model, ExpertTensors experts)
      : traits_(traits_of(architecture)), model_(model), experts_(experts) {}

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
    if (traits_.pairs && put_in_pair(model_, name, block, part)) return true;
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
      if (experts_ == ExpertTensors::fused) return put_fused(part, block, expert, name);
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
    part.tensor = block + (down ? "mlp.experts.down_proj" : "mlp.experts.gate_up_proj");
    part.shape = {model_.moe.num_experts, rows, part.columns};
    return true;
  }
  // With fused experts, every architecture names the layer "mlp".
  std::string_view router() const { return experts_ == ExpertTensors::fused ? "mlp.gate" : traits_.router; }

  const ArchitectureTraits& traits_;
  const ModelConfig& model_;
  ExpertTensors experts_;
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

bool is_ignored_tensor(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace weft
