#include "trainer/huggingface/import.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/config/config_sources.h"
#include "trainer/config/config_value.h"
#include "trainer/huggingface/matrix_stream.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/huggingface/names.h"
#include "trainer/huggingface/weight_files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

ExpertTensors experts_of(const WeightFolder& weights) {
  const auto names = weights.names();
  const bool fused =
      std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(".mlp.experts.gate_up_proj"); });
  return fused ? ExpertTensors::fused : ExpertTensors::separate;
}

bool equal_bytes(const WeightFolder& weights, const SafetensorsTensor& one, const SafetensorsTensor& other) {
  constexpr std::int64_t piece = std::int64_t{1} << 20;
  if (one.bytes() != other.bytes()) return false;
  std::vector<std::uint8_t> a, b;
  for (std::int64_t at = 0; at < one.bytes(); at += piece) {
    for (std::vector<std::uint8_t>* bytes : {&a, &b}) {
      bytes->resize(static_cast<std::size_t>(std::min(piece, one.bytes() - at)));
    }
    weights.read(one.name, at, a);
    weights.read(other.name, at, b);
    if (a != b) return false;
  }
  return true;
}

// Some folders hold a tied head beside the embedding. It must equal the embedding and is then skipped.
void expect_weights(const WeightFolder& weights, const FolderModel& folder, ExpertTensors experts) {
  std::vector<FolderTensor> expected = folder_tensors(folder.architecture, folder.model, experts);
  const auto* head = weights.find(folder_head);
  if (folder.model.tie_word_embeddings && head != nullptr) expected.push_back({folder_head, head->shape});
  std::vector<std::string> faults = weights.find_faults(expected);
  if (faults.empty() && folder.model.tie_word_embeddings && head != nullptr &&
      (head->dtype != weights.find(folder_embedding)->dtype ||
       !equal_bytes(weights, *head, *weights.find(folder_embedding)))) {
    faults.push_back(fmt::format("tie_word_embeddings is true, but {} and {} differ", folder_head, folder_embedding));
  }
  if (!faults.empty()) {
    fail_request("the weights are not those that config.json tells of:\n  {}", fmt::join(faults, "\n  "));
  }
}

// The weight that a part of a folder's tensor becomes. `weights` outlives it.
NewWeight weight_of(const WeightFolder& weights, const FolderPart& part) {
  const DType dtype = *dtype_of_safetensors(weights.find(part.tensor)->dtype);
  const auto put = [&weights, part, dtype](const NewWeight::Write& write) {
    std::vector<std::uint8_t> rows(static_cast<std::size_t>(part.rows * part.columns * size_of(dtype)));
    weights.read(part.tensor, part.first_row * part.columns * size_of(dtype), rows);
    const MatrixBytes matrix{rows, part.rows, part.columns, dtype};
    stream_matrix(matrix, part.parameter.transposed, dtype, part.parameter.name, write);
  };
  return {part.parameter.name, part.parameter.global_rows, part.parameter.global_columns, dtype, put};
}

// A TOML file with the model and its sequence length, for runs to include and for evaluation.
std::string config_text(const fs::path& folder, const FolderModel& model) {
  std::string text = fmt::format("# The model of {}, a {} of Hugging Face; `include` this in a run's TOML.\n\n{}",
                                 toml_text(fs::weakly_canonical(folder).string()),
                                 traits_of(model.architecture).model_type, model_section_toml(model.model));
  const fs::path json = folder / model_json_name;
  const std::int64_t length = parse_folder_facts(read_text(json), json.string()).max_position_embeddings;
  if (length > 0) text += fmt::format("\n[training]\nsequence_length = {}  # max_position_embeddings\n", length);
  return text;
}

}  // namespace

FolderModel read_folder_model(const fs::path& folder) {
  return parse_model_json(read_text(folder / model_json_name), (folder / model_json_name).string());
}

ImportResult import_folder(const fs::path& folder, const fs::path& to,
                           const std::map<std::string, std::string>& model_keys, std::int64_t largest_file) {
  const FolderModel model = read_folder_model(folder);
  const WeightFolder weights(folder);
  const ExpertTensors experts = experts_of(weights);
  expect_weights(weights, model, experts);
  std::vector<NewWeight> made;
  for (const FolderPart& part : folder_parts(model.architecture, model.model, experts)) {
    made.push_back(weight_of(weights, part));
  }

  NewFolder checkpoint(to);
  Manifest manifest;
  manifest.model = model_keys;
  ImportResult result{model, 0, 0, write_weights(checkpoint.path(), made, largest_file, manifest)};
  write_text_file(checkpoint.path() / checkpoint_config_name, config_text(folder, model), manifest);
  for (const fs::path& file : find_companions(folder)) {
    write_text_file(checkpoint.path() / file.filename(), read_text(file), manifest);
  }
  write_new_file(checkpoint.path() / manifest_name, to_json(manifest));
  checkpoint.publish();
  for (const NewWeight& weight : made) {
    result.parameters += weight.rows * weight.columns;
    result.bytes += weight.bytes();
  }
  return result;
}

}  // namespace weft
