// `weft export` and `weft import`: checkpoints as folders of Hugging Face, and back.
#include <fmt/format.h>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/huggingface/export.h"
#include "trainer/huggingface/import.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/config_rules.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {
namespace {

struct ExportRequest {
  std::string checkpoint, to;
  std::string architecture = "auto", dtype = "saved", max_shard_size = "5GB", tokenizer;
  std::optional<std::int64_t> max_position_embeddings;
  bool check = false, without_predictors = false;
};

std::optional<DType> read_dtype(const std::string& name) {
  if (name == "saved") return std::nullopt;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    if (name_of(dtype) == name) return dtype;
  }
  fail_request("weft export: error: --dtype {}: float32, bfloat16, float16 or saved", name);
}

// Whether each architecture can express the model, and which programs load the chosen one.
std::string check_text(const ModelConfig& model, Architecture chosen) {
  std::string text = fmt::format("{:<12} {}\n", "architecture", "can express the model");
  for (const Architecture architecture : architectures) {
    const auto reasons = reasons_against(architecture, model);
    const std::string_view name = traits_of(architecture).model_type;
    text += fmt::format("{:<12} {}\n", name, reasons.empty() ? "yes" : "no");
    for (const std::string& reason : reasons) text += fmt::format("{:<12}   {}\n", "", reason);
  }
  text += fmt::format("\n{:<12} loads {}\n", "program", traits_of(chosen).model_type);
  for (const Loader& loader : loaders_of(chosen, model)) {
    const std::string reason = loader.reason.empty() ? "" : ": " + loader.reason;
    text += fmt::format("{:<12} {}{}\n", loader.name, loader.loads ? "yes" : "no", reason);
  }
  return text;
}

void run_export(const ExportRequest& request) {
  if (request.check != request.to.empty()) {
    fail_request("weft export: error: give OUT, the folder to write, or --check, which writes nothing");
  }
  const CheckpointFolder checkpoint = resolve_checkpoint(request.checkpoint);
  const CheckpointReader reader(checkpoint.path);
  // A configuration changed by hand no longer describes the weights' model; it is refused, as a changed tokenizer is.
  reader.require_unchanged(checkpoint_config_name);
  reader.require_texts_unchanged();
  const ModelSection section = read_model_section(checkpoint.path / checkpoint_config_name);
  const ModelConfig model = request.without_predictors ? without_predictors(section.model) : section.model;
  const Architecture architecture =
      request.architecture == "auto" ? choose_architecture(model) : architecture_of(request.architecture);
  if (request.check) fmt::print("{}\n", check_text(model, architecture));

  ExportOptions options{architecture, read_dtype(request.dtype), parse_file_size(request.max_shard_size), 0,
                        request.tokenizer};
  const auto length = request.max_position_embeddings ? request.max_position_embeddings : section.sequence_length;
  options.max_position_embeddings = length.value_or(0);
  options.checkpoint = checkpoint.path;
  options.ranks = kept_tokenizer(checkpoint.path.string(), section.tokenizer).value_or("");
  if (request.without_predictors) options.left_behind = predictor_parameters(section.model);
  const ExportPlan plan = plan_export(reader.manifest(), model, options);
  if (plan.facts.max_position_embeddings == 0 && !request.check) {
    fail_request("weft export: error: {} does not say how long sequences may be; give --max-position-embeddings",
                 (checkpoint.path / checkpoint_config_name).string());
  }
  if (!request.check) export_checkpoint(reader, plan, request.to);
  fmt::print("{} {} as {}: {} tensors, {} bytes, {} {}\n", request.check ? "would write" : "wrote",
             checkpoint.path.string(), traits_of(architecture).model_type, plan.tensors.size(), plan.bytes(),
             plan.files.size(), plan.files.size() == 1 ? "file" : "files");
  if (!plan.has_tokenizer()) {
    const std::string& name = section.tokenizer;
    const bool bytes = name == "byte" || (name.empty() && model.vocab_size <= 256);
    fmt::print("it has no tokenizer: {}, and --tokenizer takes another\n",
               bytes                            ? "the ids of a model of bytes are list(text.encode())"
               : name.empty() || name == "none" ? "the configuration names none"
                                                : fmt::format("the checkpoint has no file of \"{}\"", name));
  }
  if (plan.leaves_out_normalizer) {
    fmt::print(
        "its tokenizer.model normalises texts, as transformers does by LlamaTokenizer of version 4 with use_fast=False "
        "alone; for others give --tokenizer a tokenizer.json\n");
  }
  if (const std::string text = coefficient_text(model); !text.empty()) fmt::print("{}\n", text);
}

struct ImportRequest {
  std::string folder, to;
};

void run_import(const ImportRequest& request) {
  require_names(request.folder, request.to);
  Config config;
  config.model = read_folder_model(request.folder).model;
  config.layers_text = layers_text({config.model.blocks, config.model.mtp_depth});
  require_sizes(config);
  const ImportResult result = import_folder(request.folder, request.to, model_keys(config));
  fmt::print("wrote {}, a {}: {} parameters, {} bytes, {} {}\n", request.to,
             traits_of(result.folder.architecture).model_type, result.parameters, result.bytes, result.files,
             result.files == 1 ? "file" : "files");
  if (result.folder.leaves_predictors) {
    fmt::print("config.json tells of predictors (num_nextn_predict_layers), the weights do not: the model has none\n");
  }
  if (const std::string text = coefficient_text(result.folder.model); !text.empty()) fmt::print("{}\n", text);
}

}  // namespace

void add_export_command(CLI::App& program) {
  const auto [command, request] =
      add_command<ExportRequest>(program, "export", "a checkpoint as a folder of Hugging Face", run_export);
  command
      .add_option("CHECKPOINT", request.checkpoint,
                  "a checkpoint, a folder of checkpoints or the directory of a run: the newest there")
      ->required();
  command.add_option("OUT", request.to, "the folder to write; it must not exist");
  command.add_option("--architecture", request.architecture, "auto, or one of those that --check lists")
      ->capture_default_str();
  command.add_option("--dtype", request.dtype, "of weights: float32, bfloat16, float16, or as they were saved")
      ->capture_default_str();
  command.add_option("--max-shard-size", request.max_shard_size, "of a file: 5GB, 500MB, 4GiB")->capture_default_str();
  command.add_option(
      "--tokenizer", request.tokenizer,
      "a folder whose tokenizer, generation_config.json and token ids go with the model; otherwise those of "
      "the run, or those that an import brought");
  command
      .add_option("--max-position-embeddings", request.max_position_embeddings,
                  "of config.json; otherwise the sequence length that the checkpoint was trained with")
      ->check(positive());
  command.add_flag("--without-predictors", request.without_predictors, "leave the predictors (m) behind");
  command.add_flag(
      "--check", request.check,
      "write nothing; list the architectures that can express the model, the reasons against others, and the loaders");
}

void add_import_command(CLI::App& program) {
  const auto [command, request] =
      add_command<ImportRequest>(program, "import", "a folder of Hugging Face as a checkpoint of weights", run_import);
  command.add_option("FOLDER", request.folder, "has config.json and safetensors files")->required();
  command.add_option("OUT", request.to, "the checkpoint to write; it must not exist")->required();
}

}  // namespace weft
