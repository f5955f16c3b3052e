#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "parallel/runtime/error.h"
#include "parallel/runtime/standard_error.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/config/config.h"
#include "trainer/inference/forward_run.h"
#include "trainer/inference/generation.h"

namespace weft {
namespace {

struct GenerateArguments {
  std::string checkpoint;
  GenerationRequest request;
  bool json = false;
};

void write_bytes(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout) != 0) {
    fail("the text cannot be written to standard output");
  }
}

void write_title(std::int64_t sample, std::int64_t samples) {
  write_bytes(fmt::format("--- sample {} of {} ---\n", sample + 1, samples));
}

// Prints the samples behind the first, which was printed while it was generated.
void write_rest(const GenerationRequest& request, const GenerationResult& result) {
  for (std::int64_t sample = 1; sample < request.samples; ++sample) {
    write_bytes("\n");
    write_title(sample, request.samples);
    write_bytes(result.samples[static_cast<std::size_t>(sample)].text);
  }
  // A newline keeps the shell's prompt off the text. One sample redirected has only bytes of the model.
  if (request.samples > 1 || isatty(STDOUT_FILENO) != 0) write_bytes("\n");
}

nlohmann::ordered_json as_json(const GenerationRequest& request, const GenerationResult& result) {
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (const GeneratedSample& sample : result.samples) {
    std::vector<int> bytes;
    for (const char byte : sample.text) bytes.push_back(static_cast<unsigned char>(byte));
    samples.push_back(
        {{"text", sample.text}, {"bytes", bytes}, {"tokens", sample.tokens}, {"finish", name_of(sample.finish)}});
  }
  return {{"prompt", request.prompt},
          {"samples", samples},
          {"prompt_seconds", result.prompt_seconds},
          {"seconds", result.seconds},
          {"tokens_per_second", result.tokens_per_second()}};
}

void add_request_options(CLI::App& command, GenerationRequest& request) {
  command.add_option("--prompt", request.prompt, "beginning of the text")->required();
  command
      .add_option("--max-tokens", request.max_tokens,
                  "new tokens of a sample, at most; unless given, no more than the trained length leaves behind the "
                  "prompt")
      ->capture_default_str();
  command.add_option("--samples", request.samples, "texts to make")->capture_default_str();
  command
      .add_option("--temperature", request.sampling.temperature,
                  "logits are divided by it; 0: the most probable token, always")
      ->capture_default_str();
  command.add_option("--top-k", request.sampling.top_k, "choose among so many most probable tokens");
  command
      .add_option("--top-p", request.sampling.top_p,
                  "choose among the fewest most probable tokens that together have this probability")
      ->capture_default_str();
  command.add_option("--seed", request.sampling.seed, "a sample is a function of seed and number")
      ->check(seed())
      ->capture_default_str();
  command.add_option("--stop", request.stop, "a sample ends where this text begins; may be given several times")
      ->allow_extra_args(false);
}

void generate_text(const CLI::App& command, GenerateArguments& arguments) {
  GenerationRequest& request = arguments.request;
  const std::filesystem::path checkpoint = resolve_checkpoint(arguments.checkpoint).path;
  const Config config = read_config_of_checkpoint(command, checkpoint);
  require_sound(request, config);
  const std::int64_t trained = config.training.sequence_length;
  const std::int64_t left = trained - std::ssize(prompt_tokens(open_vocabulary(config), request.prompt));
  if (command.count("--max-tokens") == 0 && left > 0) request.max_tokens = std::min(request.max_tokens, left);
  const bool speaks = first_rank_of_process(config) == 0;
  if (speaks && request.max_tokens > left) {
    say("weft: warning: the text may come to position {}; the model was trained on {}: {}\n",
        trained - left + request.max_tokens, trained,
        left > 0 ? fmt::format("--max-tokens {} stays within", left) : "give a shorter prompt");
  }
  // Bytes unchanged, with a line before each sample if there are several.
  const bool prints = speaks && !arguments.json;
  if (prints && request.samples > 1) write_title(0, request.samples);
  const GenerationResult result = generate(config, request, weights_of_checkpoint(checkpoint, config),
                                           [&](std::int64_t sample, std::string_view text) {
                                             if (prints && sample == 0) write_bytes(text);
                                           });
  if (!speaks) return;
  if (prints) write_rest(request, result);
  if (arguments.json) {
    nlohmann::ordered_json json = as_json(request, result);
    if (forces_balance(config.model)) json["forced_balance"] = true;
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  }
  // Redirected text has no newline at its end, and both streams may go to one file.
  const bool within_line = prints && request.samples == 1 && isatty(STDOUT_FILENO) == 0;
  say("{}prompt of {} tokens in {:.2f} s, then {:.1f} tokens/s\n", within_line ? "\n" : "", result.prompt_tokens,
      result.prompt_seconds, result.tokens_per_second());
}

}  // namespace

void add_generate_command(CLI::App& program) {
  const auto [command, arguments] =
      add_command<GenerateArguments>(program, "generate", "text from a trained model", generate_text);
  add_checkpoint_argument(command, "CHECKPOINT", arguments.checkpoint)->required();
  add_request_options(command, arguments.request);
  command.add_flag("--json", arguments.json, "print one JSON document, at the end");
  command.allow_extras();
  command.footer(
      "The text goes to standard output as it is made, without the prompt; figures go to standard error. Bytes that "
      "are\n"
      "not UTF-8 are replaced in the \"text\" of --json, and stand in its \"bytes\". Any layout but context "
      "parallelism\n"
      "makes the same text from the same seed, unless its rounding decides a token.\n"
      "Any key of the config.toml in CHECKPOINT can be given as --section.key=value, the value in TOML syntax, unless\n"
      "only training reads it.");
}

}  // namespace weft
