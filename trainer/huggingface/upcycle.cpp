#include "trainer/huggingface/upcycle.h"

#include <algorithm>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/config/config_sources.h"
#include "trainer/huggingface/weight_files.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

constexpr std::int64_t largest_file = std::int64_t{5} << 30;
constexpr std::int64_t copied_bytes = std::int64_t{1} << 24;

// The name in the dense model: "blocks.3.experts.5.up_proj.weight" comes from "blocks.3.mlp.up_proj.weight", and so
// does the norm, "blocks.3.experts.norm.weight". Other names stay.
std::string dense_name(const std::string& name) {
  const std::string_view experts = ".experts.";
  const std::size_t at = name.find(experts);
  if (at == std::string::npos) return name;
  std::string rest = name.substr(at + experts.size());
  if (rest.front() >= '0' && rest.front() <= '9') rest.erase(0, rest.find('.') + 1);
  return name.substr(0, at) + ".mlp." + rest;
}

NewWeight copied(const CheckpointReader& dense, const ParameterSpec& parameter) {
  const std::string name = dense_name(parameter.name);
  const SavedTensor* tensor = dense.manifest().find(name);
  if (tensor == nullptr || tensor->rows != parameter.global_rows || tensor->columns != parameter.global_columns) {
    fail_request("{} has no {} of {} x {}, which {} would be a copy of", dense.folder().string(), name,
                 parameter.global_rows, parameter.global_columns, parameter.name);
  }
  const auto put = [&dense, tensor](const ByteSink& sink) {
    const std::int64_t most = std::max<std::int64_t>(1, copied_bytes / tensor->row_bytes());
    std::vector<std::uint8_t> bytes;
    for (std::int64_t row = 0; row < tensor->rows; row += most) {
      const std::int64_t rows = std::min(most, tensor->rows - row);
      bytes.resize(static_cast<std::size_t>(rows * tensor->row_bytes()));
      dense.read_rows(*tensor, row, rows, bytes);
      sink(bytes);
    }
  };
  return {parameter.name, tensor->rows, tensor->columns, tensor->dtype, put};
}

NewWeight drawn(const ParameterSpec& parameter, std::uint64_t seed) {
  const auto put = [parameter, seed](const ByteSink& sink) {
    const RandomStream random(seed, parameter.name);
    std::vector<float> values(static_cast<std::size_t>(parameter.global_size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(parameter.standard_deviation * random.normal(i));
    }
    sink({reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float)});
  };
  return {parameter.name, parameter.global_rows, parameter.global_columns, DType::float32, put};
}

}  // namespace

ModelConfig upcycled_model(const ModelConfig& dense, const UpcycleOptions& options) {
  if (dense.has(BlockKind::moe)) fail_request("the model has experts already: only dense ones are made into such");
  const auto is_alone = [](const ModelBlock& block) { return !block.is_whole(); };
  if (std::ranges::any_of(dense.blocks, is_alone)) {
    fail_request("the model has blocks of one part (model.layers): only blocks of attention and an MLP get experts");
  }
  const auto has_own_width = [](const ModelBlock& block) { return block.width > 0; };
  if (std::ranges::any_of(dense.blocks, has_own_width)) {
    fail_request("the model's blocks have widths of their own (model.layers): experts are copies of one width");
  }
  ModelConfig model = dense;
  const ModelLayers all{std::vector<ModelBlock>(dense.blocks.size(), BlockKind::moe), dense.mtp_depth};
  const ModelLayers layers = options.layers.value_or(all);
  model.blocks = layers.blocks;
  model.mtp_depth = layers.mtp_depth;
  if (model.layers() != dense.layers()) {
    fail_request("the layers have {} blocks, the dense model has {}", model.layers(), dense.layers());
  }
  if (model.mtp_depth != dense.mtp_depth) {
    fail_request("the layers have {} predictors (m), the dense model has {}", model.mtp_depth, dense.mtp_depth);
  }
  if (!model.has(BlockKind::moe)) fail_request("no block of the layers has experts (e)");
  if (std::ranges::any_of(model.blocks, is_alone)) {
    fail_request("the layers have blocks of one part: write d and e");
  }
  if (std::ranges::any_of(model.blocks, has_own_width)) {
    fail_request("the layers give blocks widths of their own: experts are copies of the dense model's MLPs");
  }
  if (options.experts_per_token < 1 || options.experts < options.experts_per_token) {
    fail_request("a token cannot go to {} of {} experts", options.experts_per_token, options.experts);
  }
  // No block of the dense model read its own section: keys there would be new ones of this model.
  model.moe = {.num_experts = options.experts,
               .num_experts_per_tok = options.experts_per_token,
               .moe_intermediate_size = dense.intermediate_size,
               .norm_topk_prob = true,
               .router_aux_loss_coef = 0.01};
  if (!model.has(BlockKind::dense)) model.intermediate_size = 0;
  return model;
}

void upcycle(const CheckpointReader& dense, const ModelConfig& model, const std::string& config,
             const std::map<std::string, std::string>& model_keys, std::uint64_t seed,
             const std::filesystem::path& to) {
  std::vector<NewWeight> weights;
  for (const ParameterSpec& parameter : model_parameters(model)) {
    weights.push_back(parameter.family == Family::routing ? drawn(parameter, seed) : copied(dense, parameter));
  }
  std::vector<std::pair<std::string, std::string>> texts = {{checkpoint_config_name, config}};
  for (const SavedFile& file : dense.manifest().files) {
    const bool is_text = file.bytes == file.prefix_bytes;
    if (!is_text || file.name == checkpoint_config_name) continue;
    dense.require_unchanged(file.name);
    texts.emplace_back(file.name, read_text(dense.folder() / file.name));
  }
  write_weights_checkpoint(to, weights, texts, model_keys, largest_file);
}

}  // namespace weft
