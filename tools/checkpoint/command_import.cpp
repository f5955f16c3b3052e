#include <fmt/format.h>

#include <memory>

#include "tools/command/commands.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/huggingface/import.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

struct ImportRequest {
  std::string folder, to;
};

void run_import(const ImportRequest& request) {
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

void add_import_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("import", "a folder of Hugging Face as a checkpoint of weights");
  const auto request = std::make_shared<ImportRequest>();
  command->add_option("FOLDER", request->folder, "has config.json and safetensors files")->required();
  command->add_option("OUT", request->to, "the checkpoint to write; it must not exist")->required();
  command->callback([request] { run_import(*request); });
}

}  // namespace weft
