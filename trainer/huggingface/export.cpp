#include "trainer/huggingface/export.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "parallel/runtime/element_type.h"
#include "parallel/runtime/error.h"
#include "trainer/checkpoint/tensor_file.h"
#include "trainer/config/config_sources.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/weight_files.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> find_tensor_faults(const Manifest& manifest, const std::vector<FolderPart>& parts,
                                            const std::set<std::string>& left_behind) {
  std::vector<std::string> faults;
  std::set<std::string_view> known;
  for (const FolderPart& part : parts) {
    const ParameterSpec& parameter = part.parameter;
    known.insert(parameter.name);
    const SavedTensor* saved = manifest.find(parameter.name);
    if (saved == nullptr) {
      faults.push_back(fmt::format("the checkpoint lacks {}", parameter.name));
    } else if (saved->rows != parameter.global_rows || saved->columns != parameter.global_columns) {
      faults.push_back(fmt::format("{} has {} x {} elements in the checkpoint, {} x {} in the model", parameter.name,
                                   saved->rows, saved->columns, parameter.global_rows, parameter.global_columns));
    } else if (!is_compute_type(saved->dtype)) {
      faults.push_back(fmt::format("{} is saved as {}", parameter.name, name_of(saved->dtype)));
    }
  }
  for (const SavedTensor& saved : manifest.tensors) {
    if (saved.state.empty() && !known.contains(saved.name) && !left_behind.contains(saved.name)) {
      faults.push_back(fmt::format("{} of the checkpoint is no parameter of the model", saved.name));
    }
  }
  return faults;
}

// The dtype with most bytes.
DType main_dtype(const ExportPlan& plan) {
  std::map<DType, std::int64_t> bytes;
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) bytes[plan.tensors[t].dtype] += plan.sizes[t].bytes;
  return std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; })->first;
}

// Values of config.json win; the tokenizer fills those that are absent.
void fill_absent(std::vector<std::int64_t>& said, const std::optional<std::int64_t>& of_tokenizer) {
  if (said.empty() && of_tokenizer) said = {*of_tokenizer};
}

void add_tokenizer_settings(const std::string& tokenizer, ExportPlan& plan) {
  TokenizerSettings settings = settings_of(tokenizer);
  expect_vocabulary(settings.largest_id, plan.model.vocab_size, tokenizer);
  plan.tokenizer_settings = std::move(settings.json);
  plan.leaves_out_normalizer = settings.leaves_out_normalizer;
  fill_absent(plan.facts.bos_token_id, settings.bos_token_id);
  fill_absent(plan.facts.eos_token_id, settings.eos_token_id);
  fill_absent(plan.facts.pad_token_id, settings.pad_token_id);
}

// Takes the companion files of the weights from a Hugging Face folder or an import.
void take_companions(const fs::path& folder, const std::string& ranks, ExportPlan& plan) {
  const TokenizerFiles tokenizer = find_tokenizer_files(folder);
  for (const fs::path& file : find_companions(folder)) {
    if (file.filename() == model_json_name) {
      plan.facts = parse_folder_facts(read_text(file), file.string());
    } else {
      plan.companions.push_back(file);
    }
  }
  fill_absent(plan.facts.bos_token_id, tokenizer.bos_token_id);
  fill_absent(plan.facts.eos_token_id, tokenizer.eos_token_id);
  fill_absent(plan.facts.pad_token_id, tokenizer.pad_token_id);
  const auto has = [&](const char* name) {
    return std::ranges::find(plan.companions, folder / name) != plan.companions.end();
  };
  plan.has_tokenizer_file = !tokenizer.files.empty();
  if (!plan.has_tokenizer_file && !ranks.empty()) {
    plan.tokenizer_json = tiktoken_as_json(ranks).value_or("");
    if (plan.has_tokenizer()) add_tokenizer_settings(ranks, plan);
  }
  if (has("tokenizer_config.json")) return;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (has(name)) return add_tokenizer_settings((folder / name).string(), plan);
  }
}

void write_part(const CheckpointReader& reader, const ExportTensor& made, std::size_t part, const ByteSink& sink) {
  const SavedTensor& saved = *made.saved[part];
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(saved.rows * saved.row_bytes()));
  reader.read_rows(saved, 0, saved.rows, bytes);
  stream_matrix({bytes, saved.rows, saved.columns, saved.dtype}, made.parts[part].parameter.transposed, made.dtype,
                saved.name, sink);
}

// The bytes of a tensor of several parts.
std::vector<std::uint8_t> joined(const CheckpointReader& reader, const ExportTensor& made) {
  const std::int64_t row = made.parts[0].tensor_columns * size_of(made.dtype);
  std::int64_t size = 0;
  for (const FolderPart& part : made.parts) size += part.rows * part.columns * size_of(made.dtype);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size)), part_bytes;
  for (std::size_t p = 0; p < made.parts.size(); ++p) {
    part_bytes.clear();
    write_part(reader, made, p, [&](std::span<const std::uint8_t> strip) {
      part_bytes.insert(part_bytes.end(), strip.begin(), strip.end());
    });
    const FolderPart& part = made.parts[p];
    const std::int64_t width = part.columns * size_of(made.dtype);
    for (std::int64_t r = 0; r < part.rows; ++r) {
      std::copy_n(part_bytes.begin() + r * width, width,
                  bytes.begin() + (part.first_row + r) * row + part.first_column * size_of(made.dtype));
    }
  }
  return bytes;
}

// The tensors of the parts, and those that are no parameter.
std::vector<ExportTensor> tensors_of(const Manifest& manifest, const ModelConfig& model, const ExportOptions& options,
                                     const std::vector<FolderPart>& parts) {
  std::map<std::string, std::vector<const FolderPart*>> by_tensor;
  for (const FolderPart& part : parts) by_tensor[part.tensor].push_back(&part);
  const auto made = [&](const FolderTensor& tensor, const std::string& of) {
    ExportTensor result{tensor, DType::float32, {}};
    for (const FolderPart* part : by_tensor[of]) {
      result.parts.push_back(*part);
      result.saved.push_back(manifest.find(part->parameter.name));
      // Selection biases choose among scores that may differ by less than a short type tells.
      const bool helper = part->parameter.family == Family::helpers;
      result.dtype = helper ? result.saved.back()->dtype : options.dtype.value_or(result.saved.back()->dtype);
    }
    return result;
  };
  std::vector<ExportTensor> tensors;
  for (const FolderTensor& tensor : folder_tensors(options.architecture, model)) {
    tensors.push_back(made(tensor, tensor.name));
  }
  for (const FolderExtra& extra : folder_extras(options.architecture, model)) {
    tensors.push_back(made(extra.tensor, extra.copy_of));
  }
  return tensors;
}

void write_tensors(const CheckpointReader& reader, const ExportPlan& plan, std::size_t file, const fs::path& folder,
                   const FileCalls& calls) {
  std::map<std::string, const ExportTensor*> by_name;
  std::vector<SafetensorsTensor> tensors;
  for (const std::size_t t : plan.files[file]) {
    const ExportTensor& made = plan.tensors[t];
    by_name[made.tensor.name] = &made;
    tensors.push_back({made.tensor.name, std::string(safetensors_dtype(made.dtype)), made.tensor.shape});
  }
  TensorFile out(folder / shard_name("model", file, plan.files.size()), arrange_safetensors(std::move(tensors)), calls);
  for (const SafetensorsTensor& entry : out.header().tensors) {
    const ExportTensor& made = *by_name.at(entry.name);
    if (made.parts.empty()) {
      out.write(std::vector<std::uint8_t>(static_cast<std::size_t>(entry.bytes())));
    } else if (made.parts.size() == 1) {
      write_part(reader, made, 0, [&](std::span<const std::uint8_t> strip) { out.write(strip); });
    } else {
      out.write(joined(reader, made));
    }
  }
  out.finish();
}

}  // namespace

std::int64_t ExportPlan::bytes() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0},
                         [](std::int64_t sum, const NamedBytes& tensor) { return sum + tensor.bytes; });
}

std::set<std::string> predictor_parameters(const ModelConfig& model) {
  std::set<std::string> names;
  for (const ParameterSpec& parameter : model_parameters(model)) names.insert(parameter.name);
  for (const ParameterSpec& parameter : model_parameters(without_predictors(model))) names.erase(parameter.name);
  return names;
}

ExportPlan plan_export(const Manifest& manifest, const ModelConfig& model, const ExportOptions& options) {
  std::vector<std::string> faults = reasons_against(options.architecture, model);
  if (!faults.empty()) {
    fail_request("the model cannot be written as {}: {}", traits_of(options.architecture).model_type,
                 fmt::join(faults, "\n  and "));
  }
  require(!options.dtype || is_compute_type(*options.dtype), "weights are exported in a dtype to compute in");
  const std::vector<FolderPart> parts = folder_parts(options.architecture, model);
  faults = find_tensor_faults(manifest, parts, options.left_behind);
  if (!faults.empty()) fail_request("{}", fmt::join(faults, "\n"));

  ExportPlan plan;
  plan.architecture = options.architecture;
  plan.model = model;
  plan.tensors = tensors_of(manifest, model, options, parts);
  for (const auto& [tensor, dtype, parts_of, saved] : plan.tensors) {
    const std::int64_t size =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies());
    plan.sizes.push_back({tensor.name, size * size_of(dtype)});
  }
  plan.files = deal_to_files(plan.sizes, options.largest_file);
  if (!options.tokenizer.empty()) {
    const TokenizerFiles tokenizer = find_tokenizer_files(options.tokenizer);
    if (tokenizer.files.empty()) {
      fail_request("{} has no file of a tokenizer, such as tokenizer.json or tokenizer.model",
                   options.tokenizer.string());
    }
    expect_vocabulary(tokenizer.largest_id, model.vocab_size);
    take_companions(options.tokenizer, "", plan);
  } else if (!options.checkpoint.empty()) {
    take_companions(options.checkpoint, options.ranks, plan);
  }
  if (options.max_position_embeddings > std::numeric_limits<std::int32_t>::max()) {
    fail_request("max_position_embeddings {} is above {}", options.max_position_embeddings,
                 std::numeric_limits<std::int32_t>::max());
  }
  if (options.max_position_embeddings > 0) plan.facts.max_position_embeddings = options.max_position_embeddings;
  plan.facts.dtype = main_dtype(plan);
  return plan;
}

void export_checkpoint(const CheckpointReader& reader, const ExportPlan& plan, const fs::path& to) {
  const FileCalls calls = FileCalls::of_system();
  NewFolder folder(to);
  for (std::size_t file = 0; file < plan.files.size(); ++file) write_tensors(reader, plan, file, folder.path(), calls);
  write_new_file(folder.path() / index_name, index_json(plan.sizes, plan.files), calls);
  write_new_file(folder.path() / model_json_name, model_json(plan.architecture, plan.model, plan.facts), calls);
  for (const fs::path& file : plan.companions) write_new_file(folder.path() / file.filename(), read_text(file), calls);
  for (const auto& [name, text] : {std::pair{"tokenizer.json", &plan.tokenizer_json},
                                   std::pair{"tokenizer_config.json", &plan.tokenizer_settings}}) {
    if (!text->empty()) write_new_file(folder.path() / name, *text, calls);
  }
  if (std::ranges::none_of(plan.companions, [](const fs::path& f) { return f.filename() == generation_json_name; })) {
    write_new_file(folder.path() / generation_json_name, generation_json(plan.facts), calls);
  }
  folder.publish();
}

}  // namespace weft
