#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/load_weights.h"
#include "trainer/evaluation.h"

namespace weft {
namespace {

struct Arguments {
  std::string checkpoint;
  std::vector<std::string> files;
  bool json = false;
};

nlohmann::ordered_json as_json(const EvaluationResult& result) {
  return {{"loss", result.loss},
          {"perplexity", result.perplexity()},
          {"bits_per_byte", result.bits_per_byte()},
          {"tokens", result.tokens},
          {"windows", result.windows},
          {"seconds", result.seconds},
          {"tokens_per_second", static_cast<double>(result.tokens) / result.seconds}};
}

}  // namespace

void add_eval_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("eval", "the loss of a trained model on held-out text");
  const auto arguments = std::make_shared<Arguments>();
  add_checkpoint_argument(*command, "CHECKPOINT", arguments->checkpoint)->required();
  command->add_option("--data", arguments->files, "files of text")->required();
  command->add_flag("--json", arguments->json, "print one JSON document");
  command->allow_extras();
  command->footer(
      "The text is read in windows of training.sequence_length, in the order of the files. Every byte but the first of "
      "a\n"
      "file is predicted once, from those before it in its window; a file's last window may be shorter and counts by "
      "its\n"
      "bytes. Any layout gives the same figures.\n"
      "Any key of the config.toml in CHECKPOINT can be given as --section.key=value, the value in TOML syntax.");
  command->callback([command, arguments] {
    const std::filesystem::path checkpoint = resolve_checkpoint(arguments->checkpoint).path;
    const Config config = read_config_given_to(*command, (checkpoint / checkpoint_config_name).string()).config;
    const EvaluationResult result = evaluate(config, arguments->files, weights_of_checkpoint(checkpoint, config));
    if (first_rank_of_process(config) != 0) return;
    if (arguments->json) {
      fmt::print("{}\n", as_json(result).dump(2));
      return;
    }
    fmt::print("loss {:.6f} nats a token, perplexity {:.4f}, {:.6f} bits a byte\n", result.loss, result.perplexity(),
               result.bits_per_byte());
    fmt::print("{} tokens in {} windows of {}, {:.2f} s\n", result.tokens, result.windows,
               config.training.sequence_length, result.seconds);
  });
}

}  // namespace weft
