#include "tests/trainer/huggingface_fixture.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

#include "parallel/runtime/element_type.h"
#include "trainer/checkpoint/tensor_file.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/plan/stage_plan.h"

namespace weft::huggingface_test {
namespace {

namespace fs = std::filesystem;

// Values as elements, and back.
std::vector<std::uint8_t> encode(std::span<const double> values, DType dtype) {
  std::vector<std::uint8_t> bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
  with_element_type(dtype, [&](auto element) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const decltype(element) value(static_cast<float>(values[i]));
      std::copy_n(reinterpret_cast<const std::uint8_t*>(&value), sizeof(value), bytes.data() + i * sizeof(value));
    }
  });
  return bytes;
}

Values decode(const std::vector<std::uint8_t>& bytes, DType dtype) {
  Values values(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  with_element_type(dtype, [&](auto element) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::copy_n(bytes.data() + i * sizeof(element), sizeof(element), reinterpret_cast<std::uint8_t*>(&element));
      values[i] = static_cast<double>(static_cast<float>(element));
    }
  });
  return values;
}

// What one of the two files has: the first `rows / 3` rows of each tensor, or the others.
struct Piece {
  const ParameterSpec* parameter;
  std::string state;
  DType dtype;
  std::int64_t begin, rows;
};

std::vector<Piece> pieces_of(const std::vector<ParameterSpec>& parameters, int file, DType dtype, DType router) {
  std::vector<Piece> pieces;
  for (const ParameterSpec& parameter : parameters) {
    const std::int64_t cut = parameter.global_rows / 3;
    const std::int64_t begin = file == 0 ? 0 : cut, rows = file == 0 ? cut : parameter.global_rows - cut;
    if (rows == 0) continue;
    const DType own = parameter.family == Family::helpers   ? DType::float32
                      : parameter.family == Family::routing ? router
                                                            : dtype;
    pieces.push_back({&parameter, "", own, begin, rows});
    pieces.push_back({&parameter, "exp_avg", DType::float32, begin, rows});
  }
  return pieces;
}

}  // namespace

ModelConfig tiny_model(Architecture architecture, bool tied) {
  const ArchitectureTraits& traits = traits_of(architecture);
  ModelConfig model;
  const ModelLayers layers = parse_layers(traits.pairs                               ? "A E M E"
                                          : traits.predictors                        ? "d e*2 m"
                                          : traits.dense_blocks && traits.moe_blocks ? "e d e"
                                          : traits.moe_blocks                        ? "e*2"
                                                                                     : "d*2");
  model.blocks = layers.blocks;
  model.mtp_depth = layers.mtp_depth;
  model.vocab_size = 37;
  model.hidden_size = 24;
  model.intermediate_size = traits.dense_blocks && !traits.pairs ? 28 : 0;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = traits.divides_hidden ? 6 : 8;
  model.qk_norm = traits.head_norms != HeadNorms::never;
  model.rope_theta = 50000.0;
  model.rms_norm_eps = 1e-5;
  model.tie_word_embeddings = tied;
  model.initializer_range = 0.015;
  if (traits.moe_blocks) {
    model.moe.num_experts = 5;
    model.moe.num_experts_per_tok = 2;
    model.moe.moe_intermediate_size = 14;
    model.moe.norm_topk_prob = traits.always_renormalises;  // qwen3_moe: what is not its class's default elsewhere
    model.moe.router_aux_loss_coef = 0.01;
  }
  if (!traits.shared.empty()) {
    model.moe.shared_expert_intermediate_size = traits.sigmoid_router ? 42 : 10;
    model.moe.shared_expert_gate = traits.gated_shared_expert;
  }
  if (traits.pairs)
    model.state_space = {.num_heads = 6, .head_dim = 8, .state_size = 5, .n_groups = 1, .conv_kernel = 3};
  if (traits.sigmoid_router) {
    model.moe.num_experts = 6;
    model.moe.scoring = Scoring::sigmoid;
    model.moe.selection_bias = true;
    model.moe.n_group = 3;
    model.moe.topk_group = 2;
    model.moe.routed_scaling_factor = 1.75;
  }
  return model;
}

NamedValues random_weights(const ModelConfig& model, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  NamedValues weights;
  for (const ParameterSpec& parameter : model_parameters(model)) {
    const float mean = parameter.initializer == Initializer::ones ? 1.0f : 0.0f;
    Values& values = weights[parameter.name];
    for (std::int64_t i = 0; i < parameter.global_size(); ++i) {
      values.push_back(static_cast<float>(bfloat16(mean + normal(generator))));
    }
  }
  return weights;
}

void write_checkpoint(const fs::path& folder, const ModelConfig& model, const NamedValues& weights, DType dtype,
                      DType dtype_of_router) {
  fs::create_directories(folder);
  const std::vector<ParameterSpec> parameters = model_parameters(model);
  const FileCalls calls = FileCalls::of_system();
  Manifest manifest;
  manifest.progress.step = 12;
  std::map<std::pair<std::string, std::string>, SavedTensor> saved;
  for (int f = 0; f < 2; ++f) {
    const auto pieces = pieces_of(parameters, f, dtype, dtype_of_router);
    std::vector<SafetensorsTensor> tensors;
    std::map<std::string, const Piece*> by_name;
    for (const Piece& piece : pieces) {
      const std::string name = piece.parameter->name + ":" + piece.state;
      by_name[name] = &piece;
      tensors.push_back(
          {name, std::string(safetensors_dtype(piece.dtype)), {piece.rows, piece.parameter->global_columns}});
    }
    TensorFile file(folder / ("rank-" + std::to_string(f) + ".safetensors"), arrange_safetensors(tensors), calls);
    for (const SafetensorsTensor& entry : file.header().tensors) {
      const Piece& piece = *by_name.at(entry.name);
      const auto columns = static_cast<std::size_t>(piece.parameter->global_columns);
      const Values& values = weights.at(piece.parameter->name);
      const std::span<const double> rows(values.data() + static_cast<std::size_t>(piece.begin) * columns,
                                         static_cast<std::size_t>(piece.rows) * columns);
      // States have values that would be noticed among the weights.
      file.write(
          encode(piece.state.empty() ? Values(rows.begin(), rows.end()) : Values(rows.size(), 1e30), piece.dtype));
    }
    file.finish();
    for (std::size_t t = 0; t < file.header().tensors.size(); ++t) {
      const Piece& piece = *by_name.at(file.header().tensors[t].name);
      const ParameterSpec& parameter = *piece.parameter;
      SavedTensor& tensor = saved[{parameter.name, piece.state}];
      tensor.name = parameter.name;
      tensor.state = piece.state;
      tensor.rows = parameter.global_rows;
      tensor.columns = parameter.global_columns;
      tensor.dtype = piece.dtype;
      tensor.boxes.push_back(file.box(t, piece.begin, piece.rows, f));
    }
    manifest.files.push_back(file.saved());
  }
  for (auto& [name, tensor] : saved) manifest.tensors.push_back(std::move(tensor));
  write_bytes(folder / "manifest.json", to_json(manifest));
  write_bytes(folder / "config.toml", model_section_toml(model) + "[training]\nsequence_length = 64\n");
}

NamedValues read_checkpoint(const fs::path& folder) {
  const CheckpointReader reader(folder);
  NamedValues weights;
  for (const SavedTensor& tensor : reader.manifest().tensors) {
    if (!tensor.state.empty()) continue;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.rows * tensor.row_bytes()));
    reader.read_rows(tensor, 0, tensor.rows, bytes);
    weights[tensor.name] = decode(bytes, tensor.dtype);
  }
  return weights;
}

testing::AssertionResult same_files(const fs::path& a, const fs::path& b) {
  const auto names = [](const fs::path& folder) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  };
  if (names(a) != names(b)) return testing::AssertionFailure() << a << " and " << b << " have other files";
  for (const std::string& name : names(a)) {
    if (read_bytes(a / name) != read_bytes(b / name)) return testing::AssertionFailure() << name << " differs";
  }
  return testing::AssertionSuccess();
}

std::string read_bytes(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream) << file;
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_bytes(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

void HuggingFace::SetUp() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  folder_ = fs::temp_directory_path() / ("weft-" + std::string(test->name()) + "-" + std::to_string(getpid()));
  fs::create_directories(folder_);
}

void HuggingFace::export_to(const std::string& from, const std::string& to, Architecture architecture,
                            const ModelConfig& model, std::optional<DType> dtype, std::int64_t largest_file) const {
  const CheckpointReader reader(folder_ / from);
  const ExportPlan plan = plan_export(reader.manifest(), model, {architecture, dtype, largest_file, 64, {}});
  export_checkpoint(reader, plan, folder_ / to);
}

}  // namespace weft::huggingface_test
