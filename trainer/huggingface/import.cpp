#include "trainer/huggingface/import.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/tensor_file.h"
#include "trainer/config/config_sources.h"
#include "trainer/config/config_value.h"
#include "trainer/huggingface/matrix_stream.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/huggingface/names.h"
#include "trainer/huggingface/new_folder.h"
#include "trainer/huggingface/shards.h"
#include "trainer/huggingface/tokenizer_files.h"
#include "trainer/huggingface/weight_folder.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

ExpertTensors experts_of(const WeightFolder& weights) {
  const auto names = weights.names();
  const bool fused =
      std::ranges::any_of(names, [](const std::string& name) { return name.ends_with(".mlp.experts.gate_up_proj"); });
  return fused ? ExpertTensors::fused : ExpertTensors::separate;
}

// Some folders have a tied head beside the embedding. It must be the same, and is then left out.
void expect_weights(const WeightFolder& weights, const FolderModel& folder, ExpertTensors experts) {
  std::vector<FolderTensor> expected = folder_tensors(folder.architecture, folder.model, experts);
  const auto* head = weights.find(folder_head);
  if (folder.model.tie_word_embeddings && head != nullptr) expected.push_back({folder_head, head->shape});
  std::vector<std::string> faults = weights.find_faults(expected);
  if (faults.empty() && folder.model.tie_word_embeddings && head != nullptr &&
      (head->dtype != weights.find(folder_embedding)->dtype ||
       !std::ranges::equal(weights.bytes(folder_head), weights.bytes(folder_embedding)))) {
    faults.push_back(fmt::format("tie_word_embeddings is true, but {} and {} differ", folder_head, folder_embedding));
  }
  if (!faults.empty()) {
    fail_request("the weights are not those that config.json tells of:\n  {}", fmt::join(faults, "\n  "));
  }
}

struct Source {
  FolderPart part;
  MatrixBytes matrix;  // of the folder
};

// A part's rows of the tensor that has it.
Source source_of(const WeightFolder& weights, FolderPart part) {
  const DType dtype = *dtype_of_safetensors(weights.find(part.tensor)->dtype);
  const std::int64_t row_bytes = part.columns * size_of(dtype);
  const auto bytes = weights.bytes(part.tensor)
                         .subspan(static_cast<std::size_t>(part.first_row * row_bytes),
                                  static_cast<std::size_t>(part.rows * row_bytes));
  const MatrixBytes matrix{bytes, part.rows, part.columns, dtype};
  return {std::move(part), matrix};
}

// Rows and columns as Weft keeps them.
std::vector<std::int64_t> kept_shape(const FolderPart& part) {
  const auto shape = part.shape();
  if (!part.parameter.transposed) return shape;
  return {shape.rbegin(), shape.rend()};
}

class Importing {
 public:
  Importing(const WeightFolder& weights, std::vector<FolderPart> parts, std::int64_t largest_file) {
    for (FolderPart& part : parts) {
      sources_.push_back(source_of(weights, std::move(part)));
      sizes_.push_back({sources_.back().part.parameter.name, std::ssize(sources_.back().matrix.bytes)});
    }
    files_ = deal_to_files(sizes_, largest_file);
  }

  void write(const fs::path& folder, Manifest& manifest) const {
    for (std::size_t file = 0; file < files_.size(); ++file) write_file(file, folder, manifest);
    std::ranges::sort(manifest.tensors, {}, &SavedTensor::name);
  }

  ImportResult result(FolderModel folder) const {
    ImportResult result{std::move(folder), 0, 0, files_.size()};
    for (const Source& source : sources_) {
      result.parameters += source.part.parameter.global_size();
      result.bytes += std::ssize(source.matrix.bytes);
    }
    return result;
  }

 private:
  void write_file(std::size_t file, const fs::path& folder, Manifest& manifest) const {
    std::map<std::string, const Source*> by_name;
    std::vector<SafetensorsTensor> tensors;
    for (const std::size_t s : files_[file]) {
      const Source& source = sources_[s];
      by_name[source.part.parameter.name] = &source;
      tensors.push_back(
          {source.part.parameter.name, std::string(safetensors_dtype(source.matrix.dtype)), kept_shape(source.part)});
    }
    TensorFile out(folder / shard_name("weights", file, files_.size()), arrange_safetensors(std::move(tensors)),
                   calls_);
    for (const SafetensorsTensor& entry : out.header().tensors) {
      const Source& source = *by_name.at(entry.name);
      stream_matrix(source.matrix, source.part.parameter.transposed, source.matrix.dtype, entry.name,
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
                                  source.matrix.dtype,
                                  {out.box(t, 0, parameter.global_rows, place)}});
    }
    manifest.files.push_back(out.saved());
  }

  FileCalls calls_ = FileCalls::of_system();
  std::vector<Source> sources_;
  std::vector<NamedBytes> sizes_;
  std::vector<std::vector<std::size_t>> files_;
};

// Written, and told of in the manifest.
void write_text_file(const fs::path& path, const std::string& text, Manifest& manifest) {
  const FileCalls calls = FileCalls::of_system();
  OutputFile file(path, calls);
  file.write(text);
  file.finish();
  manifest.files.push_back({path.filename().string(), std::ssize(text), std::ssize(text), checksum(text)});
}

// The model, and the sequences that it is made for: what a run includes and changes, and what it is evaluated with.
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
  const FileCalls calls = FileCalls::of_system();
  OutputFile file(checkpoint.path() / manifest_name, calls);
  file.write(to_json(manifest));
  file.finish();
  checkpoint.publish();
  return importing.result(model);
}

}  // namespace weft
