// `weft data samples`: file and positions of the tokens that samples of a run read, to find the documents of a step or
// to compare an order.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "trainer/data/data.h"

namespace weft {
namespace {

struct SamplesArguments {
  std::string config;
  std::int64_t first = 0;
  std::optional<std::int64_t> count;
  bool json = false;
};

void print_samples(const Config& config, const SamplesArguments& arguments) {
  if (config.data.train.empty()) fail_request("data.train names no file; give at least one");
  const std::int64_t batch = config.training.global_batch_size, all = config.run.steps * batch;
  if (arguments.first >= all) {
    fail_request("the run has the samples 0 to {}; --first {} is none of them", all - 1, arguments.first);
  }
  const std::int64_t count = arguments.count.value_or(std::min(batch, all - arguments.first));
  if (count > all - arguments.first) {
    fail_request("the run has the samples 0 to {}; --first {} --count {} asks for others", all - 1, arguments.first,
                 count);
  }
  const TokenDataset data = training_data(config);
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (std::int64_t sample = arguments.first; sample < arguments.first + count; ++sample) {
    nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
    for (const TokenPiece& piece : data.order().pieces(sample)) {
      const std::string& path = config.data.train[static_cast<std::size_t>(piece.file)].path;
      pieces.push_back({{"file", path}, {"first", piece.first}, {"count", piece.count}});
      if (arguments.json) continue;
      fmt::print("sample {}: tokens {} to {} of {}\n", sample, piece.first, piece.first + piece.count - 1, path);
    }
    samples.push_back({{"sample", sample}, {"pieces", std::move(pieces)}});
  }
  if (arguments.json) fmt::print("{}\n", samples.dump(2));
}

}  // namespace

void add_data_samples_command(CLI::App& data) {
  CLI::App* command = data.add_subcommand("samples", "the tokens of data.train that samples of a run read");
  const auto arguments = std::make_shared<SamplesArguments>();
  add_config_arguments(*command, arguments->config)->required();
  command->add_option("--first", arguments->first, "the first sample; a step reads training.global_batch_size of them")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--count", arguments->count, "samples to show; a batch unless given")->check(positive());
  command->add_flag("--json", arguments->json, "print one JSON document");
  command->callback(
      [command, arguments] { print_samples(read_config_given_to(*command, arguments->config).config, *arguments); });
}

}  // namespace weft
