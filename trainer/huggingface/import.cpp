#include "trainer/huggingface/import.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/tensor_file.h"
#include "trainer/config/config_sources.h"
#include "trainer/config/config_value.h"
#include "trainer/huggingface/matrix_stream.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/huggingface/names.h"

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

// The rows of a folder's tensor that hold a part.
struct Source {
  FolderPart part;
  DType dtype = DType::float32;

  std::int64_t bytes() const { return part.rows * part.columns * size_of(dtype); }
  std::vector<std::uint8_t> read(const WeightFolder& weights) const {
    std::vector<std::uint8_t> rows(static_cast<std::size_t>(bytes()));
    weights.read(part.tensor, part.first_row * part.columns * size_of(dtype), rows);
    return rows;
  }
};

// Rows and columns as Weft stores them.
std::vector<std::int64_t> kept_shape(const FolderPart& part) {
  const auto shape = part.shape();
  if (!part.parameter.transposed) return shape;
  return {shape.rbegin(), shape.rend()};
}

class Importing {
 public:
  Importing(const WeightFolder& weights, std::vector<FolderPart> parts, std::int64_t largest_file) : weights_(weights) {
    for (FolderPart& part : parts) {
      const DType dtype = *dtype_of_safetensors(weights.find(part.tensor)->dtype);
      sources_.push_back({std::move(part), dtype});
      sizes_.push_back({sources_.back().part.parameter.name, sources_.back().bytes()});
    }
    files_ = deal_to_files(sizes_, largest_file);
  }

  void write(const fs::path& folder, Manifest& manifest) const {
    for (std::size_t file = 0; file < files_.size(); ++file) write_tensors(file, folder, manifest);
    std::ranges::sort(manifest.tensors, {}, &SavedTensor::name);
  }

  ImportResult result(FolderModel folder) const {
    ImportResult result{std::move(folder), 0, 0, files_.size()};
    for (const Source& source : sources_) {
      result.parameters += source.part.parameter.global_size();
      result.bytes += source.bytes();
    }
    return result;
  }

 private:
  void write_tensors(std::size_t file, const fs::path& folder, Manifest& manifest) const {
    std::map<std::string, const Source*> by_name;
    std::vector<SafetensorsTensor> tensors;
    for (const std::size_t s : files_[file]) {
      const Source& source = sources_[s];
      by_name[source.part.parameter.name] = &source;
      tensors.push_back(
          {source.part.parameter.name, std::string(safetensors_dtype(source.dtype)), kept_shape(source.part)});
    }
    TensorFile out(folder / shard_name("weights", file, files_.size()), arrange_safetensors(std::move(tensors)),
                   calls_);
    for (const SafetensorsTensor& entry : out.header().tensors) {
      const Source& source = *by_name.at(entry.name);
      const std::vector<std::uint8_t> rows = source.read(weights_);
      const MatrixBytes matrix{rows, source.part.rows, source.part.columns, source.dtype};
      stream_matrix(matrix, source.part.parameter.transposed, source.dtype, entry.name,
                    [&](std::span<const std::uint8_t> strip) { out.write(strip); });
    }
    out.finish();
    for (std::size_t t = 0; t < out.header().tensors.size(); ++t) {
      const Source& source = *by_name.at(out.header().tensors[t].name);
      const ParameterSpec& parameter = source.part.parameter;
      const auto place = static_cast<int>(manifest.files.size());
      manifest.tensors.push_back({parameter.name,
                                  "",
                                  parameter.global_rows,
                                  parameter.global_columns,
                                  source.dtype,
                                  {out.box(t, 0, parameter.global_rows, place)}});
    }
    manifest.files.push_back(out.saved());
  }

  const WeightFolder& weights_;
  FileCalls calls_ = FileCalls::of_system();
  std::vector<Source> sources_;
  std::vector<NamedBytes> sizes_;
  std::vector<std::vector<std::size_t>> files_;
};

// Writes the file and records it in the manifest.
void write_text_file(const fs::path& path, const std::string& text, Manifest& manifest) {
  write_new_file(path, text);
  manifest.files.push_back({path.filename().string(), std::ssize(text), std::ssize(text), checksum(text)});
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
  const Importing importing(weights, folder_parts(model.architecture, model.model, experts), largest_file);

  NewFolder checkpoint(to);
  Manifest manifest;
  manifest.model = model_keys;
  importing.write(checkpoint.path(), manifest);
  write_text_file(checkpoint.path() / checkpoint_config_name, config_text(folder, model), manifest);
  for (const fs::path& file : find_companions(folder)) {
    write_text_file(checkpoint.path() / file.filename(), read_text(file), manifest);
  }
  write_new_file(checkpoint.path() / manifest_name, to_json(manifest));
  checkpoint.publish();
  return importing.result(model);
}

}  // namespace weft
