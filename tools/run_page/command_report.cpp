#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/run_page/reported_run.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/config/config_sources.h"
#include "trainer/diagnosis/run_outputs.h"
#include "trainer/inference/forward_run.h"
#include "trainer/inference/generation.h"
#include "trainer/rank/metrics.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

// The first bytes of every page, by which one is known.
constexpr std::string_view page_beginning = "<!DOCTYPE html>\n<html lang=\"en\" data-made-by=\"weft report\">\n";

struct ReportRequest {
  std::vector<std::string> runs;
  std::string output;
  GenerationRequest generation = {.max_tokens = 64, .samples = 0};
};

ReportedRun read_reported_run(const std::filesystem::path& directory) {
  require_run(directory, "weft report: error: ");
  ReportedRun run;
  run.directory = directory;
  run.config_text = read_text(directory / "config.toml");
  run.config = read_config_text(run.config_text, (directory / "config.toml").string()).config;
  run.name = run.config.run.name;
  run.table = read_step_table(directory / metrics_file);
  try {
    run.lanes = step_lanes(run.config, directory);
  } catch (const Error& error) {
    run.unplanned = error.what();
  }
  return run;
}

// Throws Error (request) with the file and the fault. Faults are a directory that is no run's or is given twice,
// metrics without a whole line, and a configuration unknown to this version. A step that cannot be planned is no error.
std::vector<ReportedRun> read_reported_runs(const std::vector<std::string>& directories) {
  std::set<std::filesystem::path> seen;
  for (const std::string& directory : directories) {
    std::error_code error;
    if (seen.insert(std::filesystem::weakly_canonical(directory, error)).second) continue;
    fail_request("weft report: error: {} is given twice", directory);
  }
  std::vector<ReportedRun> runs;
  for (const std::string& directory : directories) runs.push_back(read_reported_run(directory));
  for (ReportedRun& run : runs) {
    const auto same =
        std::ranges::count(runs, run.config.run.name, [](const ReportedRun& other) { return other.config.run.name; });
    if (same > 1) run.name = fmt::format("{} ({})", run.config.run.name, run.directory.string());
  }
  return runs;
}

// A page of an earlier call may be replaced; another file may be one that the user needs.
void require_replaceable(const std::string& output) {
  if (output.empty()) {
    if (isatty(STDOUT_FILENO) == 0) return;
    fail_request("weft report: error: a page is not for a terminal: give --output FILE.html");
  }
  const std::string fault = write_fault(partial_path(output));
  if (!fault.empty()) fail_request("weft report: error: {} cannot be written: {}", output, fault);
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(output, error))) return;
  std::string beginning(page_beginning.size(), '\0');
  // Reading anything but a file might wait for ever.
  const bool file = std::filesystem::is_regular_file(output, error);
  if (file) std::ifstream(output).read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  if (beginning != page_beginning) {
    fail_request("weft report: error: {} exists and is no page of weft report; choose another --output", output);
  }
}

void write_page(const std::string& page, const std::string& output) {
  if (output.empty()) return write_result("weft report", page, "");
  try {
    replace_file(output, page);
  } catch (const Error& error) {
    std::error_code ignored;
    std::filesystem::remove(partial_path(output), ignored);
    fail_request("weft report: error: {} cannot be written: {}", output, error.what());
  }
}

// The checkpoints of a run, oldest first. A run's directory may have been moved with them.
std::vector<CheckpointFolder> kept_checkpoints(const ReportedRun& run) {
  const auto said = said_checkpoints(run.directory);
  std::vector<CheckpointFolder> kept = find_checkpoints(said.value_or(run.directory / "checkpoints"));
  std::ranges::reverse(kept);
  return kept;
}

void add_samples(const CLI::App& command, GenerationRequest generation, ReportedRun& run) {
  for (const CheckpointFolder& checkpoint : kept_checkpoints(run)) {
    const Config config = read_config_of_checkpoint(command, checkpoint.path);
    // Within the trained length, where the prompt leaves any of it.
    const std::int64_t left =
        config.training.sequence_length - std::ssize(prompt_tokens(open_vocabulary(config), generation.prompt));
    if (left > 0) generation.max_tokens = std::min(generation.max_tokens, left);
    require_sound(generation, config);
    CheckpointSamples samples{checkpoint.step, {}};
    for (const GeneratedSample& sample :
         generate(config, generation, weights_of_checkpoint(checkpoint.path, config)).samples) {
      samples.texts.push_back(sample.text);
    }
    run.samples.push_back(std::move(samples));
  }
}

void report(const CLI::App& command, const ReportRequest& request) {
  if (run_page_template().empty()) {
    fail_request(
        "weft report: error: this build has no dygraphs: install libjs-dygraphs, and configure and build anew");
  }
  const GenerationRequest& generation = request.generation;
  if (generation.samples > 0 && generation.prompt.empty()) {
    fail_request("weft report: error: --samples needs --prompt, the beginning of the texts");
  }
  if (generation.samples == 0 && !generation.prompt.empty()) {
    fail_request("weft report: error: --prompt is for --samples N, the texts from each checkpoint");
  }
  const Overrides overrides = overrides_given_to(command);
  if (generation.samples == 0 && !overrides.empty()) {
    fail_request("weft report: error: {}: keys are for --samples; a run's own configuration is shown",
                 overrides.front());
  }
  require_replaceable(request.output);
  std::vector<ReportedRun> runs = read_reported_runs(request.runs);
  if (generation.samples > 0) {
    for (ReportedRun& run : runs) add_samples(command, generation, run);
    if (std::ranges::all_of(runs, [](const ReportedRun& run) { return run.samples.empty(); })) {
      fail_request("weft report: error: --samples: none of the runs keeps a checkpoint");
    }
  }
  write_page(run_page(runs, WEFT_VERSION, generation.prompt), request.output);
}

}  // namespace

void add_report_command(CLI::App& program) {
  const auto [command, request] = add_command<ReportRequest>(
      program, "report", "runs as one HTML page: curves, memory, experts, steps, keys", report);
  command.add_option("RUN", request.runs, "the run.directory of a run; several are compared")->required();
  command.add_option("--output", request.output,
                     "write to this file, of which an earlier page is replaced; without it the page goes to standard "
                     "output, which may be no terminal");
  GenerationRequest& generation = request.generation;
  command
      .add_option("--samples", generation.samples,
                  "texts to make from each checkpoint of the runs, which takes a start of the model each; needs "
                  "--prompt")
      ->check(not_negative())
      ->capture_default_str();
  command.add_option("--prompt", generation.prompt, "beginning of the texts");
  command.add_option("--max-tokens", generation.max_tokens, "new tokens of a text, at most")->capture_default_str();
  command.add_option("--temperature", generation.sampling.temperature, "as of weft generate")->capture_default_str();
  command.add_option("--seed", generation.sampling.seed, "as of weft generate")->check(seed())->capture_default_str();
  command.allow_extras();
  command.footer(
      "The page needs no other file and no network. With --samples, any key of a checkpoint's config.toml can be "
      "given\n"
      "as --section.key=value, for another layout or device than that of the run.");
}

}  // namespace weft
