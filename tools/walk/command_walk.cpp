// `weft walk`: the actions of one rank in a step, gather by gather, with bytes, under each way of sharding. For
// learners of sharded data parallelism: the walked list is the one that a run executes.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "tools/walk/walk_parts.h"

namespace weft {
namespace {

struct WalkRequest {
  std::string file;
  std::vector<std::string> strategies;
  std::optional<int> ranks;
  WalkToy toy;
  int rank = 0;
  bool segments = false, summary = false, json = false;
};

// Reads what is walked, with overrides of which those of the command line win.
using ReadBehind = std::function<Config(Overrides first)>;

struct Walks {
  std::vector<WalkedStrategy> walked;
  std::vector<std::pair<std::string, std::string>> left_out;  // the name of a strategy, and why
};

// `all` walks every strategy that the ranks allow, and records why others are left out.
Walks walk_strategies(const ReadBehind& read, const WalkRequest& request) {
  Walks walks;
  std::vector<std::string> names = request.strategies;
  if (names.empty() && request.file.empty()) names = {"all"};
  const auto walk = [&](const std::string& name, const Overrides& words) {
    walks.walked.push_back({name, walk_step(read(words), request.rank, request.segments)});
  };
  if (names.empty()) walk("as configured", {});
  const auto add = [&](const std::string& name) {
    const WalkStrategy strategy = walk_strategy(name, read({}));
    walk(strategy.name, strategy.overrides);
  };
  for (const std::string& name : names) {
    if (name != "all") {
      add(name);
      continue;
    }
    for (const std::string& each : all_walk_strategies()) {
      if (auto refused = refusal_of([&] { add(each); })) walks.left_out.push_back({each, *std::move(refused)});
    }
    if (walks.walked.empty()) throw Error(ErrorKind::request, walks.left_out.front().second);
  }
  return walks;
}

void require_ranks(const WalkRequest& request, const Config& config) {
  const Degrees& d = config.parallelism;
  if (!request.ranks || *request.ranks == d.world()) return;
  fail_request(
      "weft walk: error: --ranks {} does not fit {}: its world is {} = pipeline {} x data_replicate {} x data_shard {} "
      "x "
      "context {} x tensor {}; leave --ranks out, or give --parallelism.data_shard=N",
      *request.ranks, request.file.empty() ? "what is given" : request.file, d.world(), d.pipeline, d.data_replicate,
      d.data_shard, d.context, d.tensor);
}

void print_walks(const Walks& walks, const WalkRequest& request) {
  if (request.json) {
    Json strategies = Json::array(), left_out = Json::array();
    for (const WalkedStrategy& walked : walks.walked) strategies.push_back(walk_json(walked));
    for (const auto& [strategy, why] : walks.left_out) left_out.push_back({{"strategy", strategy}, {"why", why}});
    fmt::print("{}\n", Json{{"strategies", strategies}, {"left_out", left_out}}.dump());
    return;
  }
  if (!request.summary) {
    for (const WalkedStrategy& walked : walks.walked) fmt::print("{}\n", walk_text(walked));
  }
  fmt::print("{}", summary_text(walks.walked));
  if (!walks.left_out.empty()) fmt::print("\n");
  for (const auto& [strategy, why] : walks.left_out) fmt::print("- {} is left out: {}\n", strategy, why);
}

void run_walk(const CLI::App& command, const WalkRequest& request) {
  const Overrides given = overrides_given_to(command);
  WalkToy toy = request.toy;
  toy.ranks = request.ranks.value_or(toy.ranks);
  const std::string toy_text = request.file.empty() ? toy_config(toy) : std::string();
  if (!request.file.empty()) warn_of_planned_card(read_config_given_to(command, request.file).config);
  const ReadBehind read = [&](Overrides first) {
    first.insert(first.end(), given.begin(), given.end());
    return request.file.empty() ? read_config_text(toy_text, "the toy of weft walk", first).config
                                : read_config(request.file, first).config;
  };
  const Config config = read({});
  require_ranks(request, config);
  if (request.rank < 0 || request.rank >= config.parallelism.pipeline) {
    fail_request("weft walk: error: --rank {} is not one of the {} ranks of the pipeline", request.rank,
                 config.parallelism.pipeline);
  }
  print_walks(walk_strategies(read, request), request);
}

}  // namespace

void add_walk_command(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("walk", "gathers, computations, frees and reductions of one rank in a step, line by line");
  const auto request = std::make_shared<WalkRequest>();
  CLI::Option* config = add_config_arguments(*command, request->file);
  config->description("TOML file that describes the run; without it a toy model is walked");
  command
      ->add_option(
          "--strategy", request->strategies,
          "full_shard, shard_grad_op, optimizer, no_shard, hybrid, \"island N\" or all; several times. By itself "
          "all of the toy, and CONFIG as it is")
      ->allow_extra_args(false);
  command->add_option("--ranks", request->ranks, "of the toy, or the world that CONFIG must have");
  const auto of_the_toy = [&](CLI::Option* option) { option->excludes(config); };
  of_the_toy(command->add_option("--blocks", request->toy.blocks, "of the toy")->capture_default_str());
  of_the_toy(command->add_option("--hidden", request->toy.hidden, "of the toy")->capture_default_str());
  of_the_toy(command->add_option("--microbatches", request->toy.microbatches, "of the toy")->capture_default_str());
  of_the_toy(command->add_flag("--moe", request->toy.moe, "every second block of the toy has experts"));
  command->add_option("--rank", request->rank, "pipeline rank whose list is walked")->capture_default_str();
  command->add_flag("--segments", request->segments, "a line for each part of a block");
  command->add_flag("--summary", request->summary, "only the comparison of strategies");
  command->add_flag("--json", request->json, "print one JSON document");
  command->callback([command, request] { run_walk(*command, *request); });
}

}  // namespace weft
