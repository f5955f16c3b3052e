#include "trainer/huggingface/import.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/config/config_sources.h"
#include "trainer/config/config_value.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/huggingface/names.h"
#include "trainer/huggingface/weight_files.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/tokenizer/tokenizer.h"

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

// The copies of other tensors that a folder has. Some folders hold a tied head beside the embedding.
std::vector<FolderExtra> copies_in(const WeightFolder& weights, const FolderModel& folder) {
  std::vector<FolderExtra> copies = folder_extras(folder.architecture, folder.model);
  if (folder.model.tie_word_embeddings) {
    copies.push_back({{folder_head, {folder.model.vocab_size, folder.model.hidden_size}}, folder_embedding});
  }
  std::erase_if(copies, [&](const FolderExtra& extra) { return weights.find(extra.tensor.name) == nullptr; });
  return copies;
}

// Copies must equal their originals and are then skipped.
void expect_weights(const WeightFolder& weights, const FolderModel& folder, ExpertTensors experts) {
  std::vector<FolderTensor> expected = folder_tensors(folder.architecture, folder.model, experts);
  const std::vector<FolderExtra> copies = copies_in(weights, folder);
  for (const FolderExtra& copy : copies) expected.push_back(copy.tensor);
  std::vector<std::string> faults = weights.find_faults(expected);
  if (faults.empty()) {
    for (const FolderExtra& copy : copies) {
      const SafetensorsTensor &one = *weights.find(copy.tensor.name), &other = *weights.find(copy.copy_of);
      if (one.dtype == other.dtype && equal_bytes(weights, one, other)) continue;
      const bool head = copy.tensor.name == folder_head;
      faults.push_back(fmt::format("{}{} and {} differ", head ? "tie_word_embeddings is true, but " : "",
                                   copy.tensor.name, copy.copy_of));
    }
  }
  if (!faults.empty()) {
    fail_request("the weights are not those that config.json tells of:\n  {}", fmt::join(faults, "\n  "));
  }
}

// The weight that a part of a folder's tensor becomes. `weights` outlives it.
NewWeight weight_of(const WeightFolder& weights, const FolderPart& part) {
  const DType dtype = *dtype_of_safetensors(weights.find(part.tensor)->dtype);
  const auto put = [&weights, part, dtype](const ByteSink& sink) {
    std::vector<std::uint8_t> rows(static_cast<std::size_t>(part.rows * part.columns * size_of(dtype)));
    const bool whole = part.columns == part.tensor_columns;
    const std::int64_t count = whole ? 1 : part.rows;  // of runs of bytes
    const std::size_t run = rows.size() / static_cast<std::size_t>(count);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t element = (part.first_row + r) * part.tensor_columns + part.first_column;
      weights.read(part.tensor, element * size_of(dtype),
                   std::span(rows).subspan(static_cast<std::size_t>(r) * run, run));
    }
    const MatrixBytes matrix{rows, part.rows, part.columns, dtype};
    stream_matrix(matrix, part.parameter.transposed, dtype, part.parameter.name, sink);
  };
  return {part.parameter.name, part.parameter.global_rows, part.parameter.global_columns, dtype, put};
}

// [data] with the folder's tokenizer, as it lies in the checkpoint; empty if Weft finds none. A tokenizer that Weft
// does not compute is named too: programs that need it say why they refuse it.
std::string data_section(const fs::path& folder, const fs::path& checkpoint, std::int64_t vocab_size) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    std::error_code ignored;
    if (!fs::is_regular_file(folder / name, ignored) || fs::file_size(folder / name, ignored) == 0) continue;
    const std::string kept = (fs::weakly_canonical(fs::absolute(checkpoint)) / name).string();
    std::string text = fmt::format("\n[data]\ntokenizer = {}\n", toml_text(kept));
    std::int64_t tokens = vocab_size;
    const auto unknown = refusal_of([&] { tokens = open_tokenizer((folder / name).string())->vocab_size(); });
    if (!unknown && tokens < vocab_size) text += fmt::format("padded_vocab = true  # it has {} tokens\n", tokens);
    return text;
  }
  return "";
}

// A TOML file with the model, its sequence length and its tokenizer, for runs to include and for evaluation.
std::string config_text(const fs::path& folder, const fs::path& checkpoint, const FolderModel& model) {
  std::string text = fmt::format("# The model of {}, a {} of Hugging Face; `include` this in a run's TOML.\n\n{}",
                                 toml_text(fs::weakly_canonical(folder).string()),
                                 traits_of(model.architecture).model_type, model_section_toml(model.model));
  const fs::path json = folder / model_json_name;
  const std::int64_t length = parse_folder_facts(read_text(json), json.string()).max_position_embeddings;
  if (length > 0) text += fmt::format("\n[training]\nsequence_length = {}  # max_position_embeddings\n", length);
  return text + data_section(folder, checkpoint, model.model.vocab_size);
}

}  // namespace

FolderModel read_folder_model(const fs::path& folder) {
  FolderModel read = parse_model_json(read_text(folder / model_json_name), (folder / model_json_name).string());
  const std::string first = fmt::format("model.layers.{}.", read.model.layers());
  const auto of_predictor = [&](const std::string& name) { return name.starts_with(first); };
  if (read.model.mtp_depth > 0 && std::ranges::none_of(WeightFolder(folder).names(), of_predictor)) {
    read.model = without_predictors(read.model);
    read.leaves_predictors = true;
  }
  return read;
}

ImportResult import_folder(const fs::path& folder, const fs::path& to,
                           const std::map<std::string, std::string>& model_keys, std::int64_t largest_file) {
  const FolderModel model = read_folder_model(folder);
  const WeightFolder weights(folder);
  const ExpertTensors experts = experts_of(weights);
  expect_weights(weights, model, experts);
  expect_vocabulary(find_tokenizer_files(folder).largest_id, model.model.vocab_size);
  std::vector<NewWeight> made;
  for (const FolderPart& part : folder_parts(model.architecture, model.model, experts)) {
    made.push_back(weight_of(weights, part));
  }

  std::vector<std::pair<std::string, std::string>> texts = {{checkpoint_config_name, config_text(folder, to, model)}};
  for (const fs::path& file : find_companions(folder)) texts.emplace_back(file.filename().string(), read_text(file));
  ImportResult result{model, 0, 0, write_weights_checkpoint(to, made, texts, model_keys, largest_file)};
  for (const NewWeight& weight : made) {
    result.parameters += weight.rows * weight.columns;
    result.bytes += weight.bytes();
  }
  return result;
}

}  // namespace weft
