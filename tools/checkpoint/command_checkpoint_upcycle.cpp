#include <fmt/format.h>

#include <filesystem>

#include "tools/command/commands.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/config/config_value.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/huggingface/upcycle.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/config_rules.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {
namespace {

struct UpcycleRequest {
  std::string checkpoint, to, layers;
  UpcycleOptions options;
  std::uint64_t seed = 1234;
};

// Besides the model it has what decides the loss of a text: the sequence length, the tokenizer and documents. The
// tokenizer is the copy that lies in the new checkpoint, if the dense one has a copy.
std::string config_text(const std::filesystem::path& folder, const ModelSection& dense, const ModelConfig& model,
                        const std::string& to) {
  std::string text = fmt::format(
      "# The dense model of {} with experts that are copies of its MLPs; `include` this in a run's TOML.\n\n{}",
      toml_text(folder.string()), model_section_toml(model));
  if (dense.sequence_length) text += fmt::format("\n[training]\nsequence_length = {}\n", *dense.sequence_length);
  std::string tokenizer = dense.tokenizer;
  if (const auto kept = kept_tokenizer(folder.string(), tokenizer)) {
    const std::filesystem::path own = std::filesystem::weakly_canonical(std::filesystem::absolute(to));
    tokenizer = (own / std::filesystem::path(*kept).filename()).string();
  }
  std::string data;
  if (!tokenizer.empty()) data += fmt::format("tokenizer = {}\n", toml_text(tokenizer));
  if (dense.padded_vocab) data += "padded_vocab = true\n";
  if (!dense.documents.empty()) data += fmt::format("documents = {}\n", toml_text(dense.documents));
  return data.empty() ? text : text + "\n[data]\n" + data;
}

void run_upcycle(const UpcycleRequest& request) {
  require_names(request.checkpoint, request.to);
  const CheckpointFolder folder = resolve_checkpoint(request.checkpoint);
  const CheckpointReader reader(folder.path);
  reader.require_unchanged(checkpoint_config_name);
  const ModelSection dense = read_model_section(folder.path / checkpoint_config_name);
  UpcycleOptions options = request.options;
  if (!request.layers.empty()) options.layers = parse_layers(request.layers);
  Config config;
  config.model = upcycled_model(dense.model, options);
  config.layers_text = layers_text({config.model.blocks, config.model.mtp_depth});
  config.training.sequence_length = dense.sequence_length.value_or(config.training.sequence_length);
  require_sizes(config);
  upcycle(reader, config.model, config_text(folder.path, dense, config.model, request.to), model_keys(config),
          request.seed, request.to);
  const ParameterCount before = count_parameters(dense.model), after = count_parameters(config.model);
  fmt::print("wrote {}: {} parameters of {}, {} of them active for a token\n", request.to, after.total, before.total,
             after.active);
}

}  // namespace

void add_checkpoint_upcycle_command(CLI::App& checkpoint) {
  const auto [command, request] = add_command<UpcycleRequest>(
      checkpoint, "upcycle",
      "the weights of a dense model as those of one with experts, which begins with the same outputs", run_upcycle);
  add_checkpoint_argument(command, "DENSE", request.checkpoint);
  command.add_option("OUT", request.to, "the checkpoint to write; it must not exist")->required();
  command.add_option("--experts", request.options.experts, "experts of a block, copies of its MLP")->required();
  command.add_option("--per-token", request.options.experts_per_token, "experts that a token goes to")
      ->capture_default_str();
  command.add_option("--layers", request.layers, "blocks of the new model, as \"d e*11\"; otherwise all have experts");
  command.add_option("--seed", request.seed, "of the routers' weights")->check(seed())->capture_default_str();
}

}  // namespace weft
