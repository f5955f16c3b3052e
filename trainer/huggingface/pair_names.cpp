// Tensors of layers of granitemoehybrid: attention or Mamba-2, then experts with a shared MLP, or that MLP alone. Parts
// of one tensor stand below one another.
#include <charconv>
#include <initializer_list>
#include <utility>

#include "trainer/huggingface/names.h"

namespace weft {
namespace {

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

}  // namespace

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

}  // namespace weft
