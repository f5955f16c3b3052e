#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/report/progress_line.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/config/config.h"
#include "trainer/inference/forward_run.h"
#include "trainer/rank/forward_plan.h"
#include "trainer/run/held_out.h"

namespace weft {
namespace {

constexpr const char* window_key = "training.sequence_length";

struct EvalArguments {
  std::string checkpoint;
  std::vector<std::string> files;
  std::int64_t window = 0;   // 0: the window of training
  std::int64_t batches = 0;  // 0: all
  bool split = false;
  bool json = false;
};

nlohmann::ordered_json as_json(const HeldOutLoss& result) {
  nlohmann::ordered_json json = {{"loss", result.loss}, {"perplexity", result.perplexity()}};
  if (result.bytes > 0) json["bits_per_byte"] = result.bits_per_byte();
  json["tokens"] = result.tokens;
  json["windows"] = result.windows;
  json["seconds"] = result.seconds;
  json["tokens_per_second"] = static_cast<double>(result.tokens) / result.seconds;
  return json;
}

// Throws Error (request) unless data.split holds out of these files what it held out of the training.
void require_same_parts(const CheckpointReader& reader, const Config& config) {
  const std::string differing = differing_parts(reader.manifest().data, config);
  if (differing.empty()) return;
  fail_request(
      "--split: these are other parts than those of the training, which may have read them:\n{}\nFor the loss on other "
      "data, name files with --data",
      differing);
}

HeldOutWindows held_out_text(const EvalArguments& arguments, const std::filesystem::path& checkpoint,
                             const Config& config) {
  // Of the run: a layout may round its own global batch.
  const std::int64_t batch = read_config(checkpoint / checkpoint_config_name).config.training.global_batch_size;
  const std::int64_t most = arguments.batches * batch;
  if (!arguments.split) return HeldOutWindows(for_inference(config), arguments.files, most, "--data");
  if (config.data.split.empty()) fail_request("--split: the run has no data.split, so that no part was held out");
  return HeldOutWindows(for_inference(config), most);
}

// Throws Error (request) if a key changes the length of windows from that of training without --window.
void require_trained_window(const CheckpointReader& reader, const Config& config) {
  const auto trained = reader.manifest().data.find(window_key);
  const std::string own = fmt::format("{}", config.training.sequence_length);
  if (trained == reader.manifest().data.end() || trained->second == own) return;
  fail_request(
      "{} is {} in the checkpoint and {} here: a loss in windows of another length is another figure. For that one, "
      "give --window {}",
      window_key, trained->second, own, own);
}

void evaluate_checkpoint(const CLI::App& command, const EvalArguments& arguments) {
  if (arguments.files.empty() && !arguments.split) {
    fail_request("weft eval: error: give --data and files, or --split for the part that data.split holds out");
  }
  const std::filesystem::path checkpoint = resolve_checkpoint(arguments.checkpoint).path;
  Overrides more;
  if (arguments.window > 0) more.push_back(fmt::format("--{}={}", window_key, arguments.window));
  // Rules ask for another balance or order where there is a capacity, or where documents are packed.
  std::vector<std::string> keys = {"data.documents",
                                   "data.order",
                                   "model.moe.capacity_factor",
                                   "model.moe.drop_policy",
                                   "model.moe.pad_to_capacity",
                                   "model.moe.aux_loss",
                                   "model.moe.router_aux_loss_coef"};
  if (arguments.split) keys.insert(keys.end(), {"data.train", "data.split"});
  const Config config = read_config_of_checkpoint(command, checkpoint, more, keys);
  if (more.empty()) require_trained_window(CheckpointReader(checkpoint), config);
  if (arguments.split) require_same_parts(CheckpointReader(checkpoint), config);
  const bool speaks = first_rank_of_process(config) == 0;
  std::optional<ProgressLine> progress;
  if (speaks) progress.emplace();
  const HeldOutLoss result =
      evaluate(held_out_text(arguments, checkpoint, config), weights_of_checkpoint(checkpoint, config), {},
               [&](std::int64_t done, std::int64_t all) {
                 if (progress)
                   progress->part(done, all, [&] { return fmt::format("{} of {} windows read", done, all); });
               });
  progress.reset();
  if (!speaks) return;
  if (!std::isfinite(result.loss))
    fail("the loss is {}: there are weights of {} that are not finite", result.loss, checkpoint.string());
  if (arguments.json) {
    nlohmann::ordered_json json = as_json(result);
    if (forces_balance(config.model)) json["forced_balance"] = true;
    return fmt::print("{}\n", json.dump(2));
  }
  fmt::print("loss {:.6f} nats a token, perplexity {:.4f}{}\n", result.loss, result.perplexity(),
             result.bytes > 0 ? fmt::format(", {:.6f} bits a byte", result.bits_per_byte()) : "");
  fmt::print("{} tokens in {} windows of {}, {:.2f} s\n", result.tokens, result.windows,
             config.training.sequence_length, result.seconds);
}

}  // namespace

void add_eval_command(CLI::App& program) {
  const auto [command, arguments] =
      add_command<EvalArguments>(program, "eval", "the loss of a trained model on held-out text", evaluate_checkpoint);
  add_checkpoint_argument(command, "CHECKPOINT", arguments.checkpoint)->required();
  CLI::Option* data =
      command.add_option("--data", arguments.files, "files of text, or of tokens that weft data tokenize wrote");
  command
      .add_flag("--split", arguments.split, "in place of files: the part of data.train for validation, by data.split")
      ->excludes(data);
  command
      .add_option("--batches", arguments.batches,
                  "global batches of training to read, of each file its part, as validation.batches; otherwise all")
      ->check(positive());
  command.add_option("--window", arguments.window, "tokens of a window, where they are not those of training")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command.add_flag("--json", arguments.json, "print one JSON document");
  command.allow_extras();
  command.footer(
      "The data are read in windows of training.sequence_length, or of --window, in the order of the files. Every "
      "token\n"
      "but the first of a file is predicted once, from those before it in its window; a file's last window may be\n"
      "shorter and counts by its tokens. Any layout gives the same figures up to rounding.\n"
      "Any key of the config.toml in CHECKPOINT can be given as --section.key=value, the value in TOML syntax, unless\n"
      "only training reads it.");
}

}  // namespace weft
