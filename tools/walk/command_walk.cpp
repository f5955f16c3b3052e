// `weft walk`: the actions of one rank in a step, gather by gather, with bytes, under each way of sharding. For
// learners of sharded data parallelism: the walked list is the one that a run executes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "tools/walk/walk_report.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

// Sizes of a transformer small enough for a reader to follow its bytes one by one.
struct WalkToy {
  int ranks = 4, blocks = 4, microbatches = 2;
  int hidden = 16;   // a multiple of 8, the width of a head
  bool moe = false;  // every second block has experts
};

// A strategy as overrides of a configuration. They win over what its [shard] sections and the command line say.
struct WalkStrategy {
  std::string name;
  Overrides overrides;
};

// Float32 everywhere, so that a unit's gather and reduction have equal bytes.
constexpr const char* toy_text = R"([run]
name = "toy"
[model]
layers = "{layers}"
vocab_size = 256
hidden_size = {hidden}
intermediate_size = {intermediate}
num_attention_heads = {heads}
num_key_value_heads = {heads}
head_dim = 8
qk_norm = false
{moe}[parallelism]
data_shard = {ranks}
[training]
sequence_length = 8
global_batch_size = {batch}
microbatch_size = 1
[data]
train = ["nothing is read"]
)";

constexpr const char* toy_moe = R"([model.moe]
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = {intermediate}
)";

void require_range(const char* option, int value, int least, int most) {
  if (value >= least && value <= most) return;
  fail_request("weft walk: error: {} takes {} to {}, not {}", option, least, most, value);
}

// Overrides for the strategy and its open keys. Keys that families say for themselves get the same values, as if the
// configuration had been written for this strategy.
Overrides shard_overrides(const ResolvedConfig& given, const std::string& strategy, const std::string& residency) {
  Overrides overrides;
  const std::pair<const char*, const std::string> values[] = {
      {"strategy", strategy}, {"residency", residency}, {"reduction", "auto"}, {"accumulation", "auto"}};
  for (const auto& [key, value] : values) overrides.push_back(fmt::format("--shard.{}={}", key, value));
  for (const Family family : shard_families) {
    for (const auto& [key, value] : values) {
      const std::string path = fmt::format("shard.{}.{}", name_of(family), key);
      if (given.said.contains(path)) overrides.push_back(fmt::format("--{}={}", path, value));
    }
  }
  return overrides;
}

WalkStrategy hybrid(const ResolvedConfig& given) {
  const Degrees& degrees = given.config.parallelism;
  if (degrees.data_shard % 2 != 0) {
    fail_request("weft walk: error: hybrid halves the {} ranks of parallelism.data_shard: there must be an even number",
                 degrees.data_shard);
  }
  WalkStrategy strategy{"hybrid", shard_overrides(given, "full_shard", "stage")};
  strategy.overrides.push_back(fmt::format("--parallelism.data_replicate={}", 2 * degrees.data_replicate));
  strategy.overrides.push_back(fmt::format("--parallelism.data_shard={}", degrees.data_shard / 2));
  return strategy;
}

WalkStrategy island(const ResolvedConfig& given, const std::string& ranks_text) {
  const std::int64_t group = shard_ranks(given.config.parallelism, Family::dense);
  int ranks = 0;
  if (ranks_text.empty()) {
    for (int divisor = 2; divisor < group && ranks == 0; ++divisor) {
      if (group % divisor == 0) ranks = divisor;
    }
    if (ranks == 0) {
      fail_request("weft walk: error: no island: {} ranks shard a unit, which have no divisor between 1 and all",
                   group);
    }
  } else {
    ranks = parsed_number<int>(ranks_text).value_or(0);
    if (ranks < 2 || ranks >= group || group % ranks != 0) {
      fail_request(
          "weft walk: error: --strategy \"island {}\": an island has a divisor of the {} ranks that shard a unit, "
          "neither 1 nor all",
          ranks_text, group);
    }
  }
  return {fmt::format("island {}", ranks), shard_overrides(given, "full_shard", fmt::format("{}", ranks))};
}

// The toy's configuration as TOML. Throws Error (request) for sizes that make no model.
std::string toy_config(const WalkToy& toy) {
  require_range("--ranks", toy.ranks, 1, 64);
  require_range("--blocks", toy.blocks, 1, 64);
  require_range("--microbatches", toy.microbatches, 1, 64);
  require_range("--hidden", toy.hidden, 8, 8192);
  if (toy.hidden % 8 != 0) {
    fail_request("weft walk: error: --hidden takes a multiple of 8, the width of a head, not {}", toy.hidden);
  }
  std::string layers;
  for (int block = 0; block < toy.blocks; ++block) layers += toy.moe && block % 2 == 1 ? " e" : " d";
  using fmt::arg;
  const std::string moe = toy.moe ? fmt::format(toy_moe, arg("intermediate", toy.hidden)) : "";
  return fmt::format(toy_text, arg("layers", layers.substr(1)), arg("hidden", toy.hidden),
                     arg("intermediate", 3 * toy.hidden), arg("heads", toy.hidden / 8), arg("moe", moe),
                     arg("ranks", toy.ranks), arg("batch", toy.ranks * toy.microbatches));
}

// The strategies of "all".
constexpr const char* all_walk_strategies[] = {"full_shard", "shard_grad_op", "optimizer",
                                               "no_shard",   "hybrid",        "island"};

// Takes every name of --strategy: "full_shard", ..., "hybrid", "island 2", and "island" for the smallest island. Throws
// Error (request) listing the names for an unknown name, and for a hybrid or island that the ranks given do not allow.
WalkStrategy walk_strategy(const std::string& name, const ResolvedConfig& given) {
  if (name == "full_shard" || name == "shard_grad_op" || name == "optimizer" || name == "no_shard") {
    return {name, shard_overrides(given, name, "stage")};
  }
  if (name == "hybrid") return hybrid(given);
  if (name == "island") return island(given, "");
  if (name.starts_with("island ")) return island(given, name.substr(std::string_view("island ").size()));
  fail_request("weft walk: error: --strategy takes {}, \"island N\" and all, not {}",
               fmt::join(all_walk_strategies, ", "), name);
}

struct WalkRequest {
  std::string file;
  std::vector<std::string> strategies;
  std::optional<int> ranks;
  WalkToy toy;
  int rank = 0;
  bool segments = false, summary = false, json = false;
};

// Reads what is walked, with overrides behind those of the command line.
using ReadBefore = std::function<ResolvedConfig(const Overrides& last)>;

struct Walks {
  std::vector<WalkedStrategy> walked;
  std::vector<std::pair<std::string, std::string>> left_out;  // the name of a strategy, and why
};

// `all` walks every strategy that the ranks allow, and records why others are left out.
Walks walk_strategies(const ReadBefore& read, const WalkRequest& request) {
  Walks walks;
  std::vector<std::string> names = request.strategies;
  if (names.empty() && request.file.empty()) names = {"all"};
  const auto walk = [&](const std::string& name, const Overrides& words) {
    walks.walked.push_back({name, walk_step(read(words).config, request.rank, request.segments)});
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
    for (const char* each : all_walk_strategies) {
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
      "x context {} x tensor {}; leave --ranks out, or give --parallelism.data_shard=N",
      *request.ranks, request.file.empty() ? "what is given" : request.file, d.world(), d.pipeline, d.data_replicate,
      d.data_shard, d.context, d.tensor);
}

void print_walks(const Walks& walks, const WalkRequest& request) {
  if (request.json) {
    const Json left_out = json_list(walks.left_out, [](const auto& left) {
      return Json{{"strategy", left.first}, {"why", left.second}};
    });
    return fmt::print("{}\n", Json{{"strategies", json_list(walks.walked, walk_json)}, {"left_out", left_out}}.dump());
  }
  if (!request.summary) {
    for (const WalkedStrategy& walked : walks.walked) fmt::print("{}\n", walk_text(walked));
  }
  fmt::print("{}", summary_text(walks.walked));
  if (!walks.left_out.empty()) fmt::print("\n");
  for (const auto& [strategy, why] : walks.left_out) fmt::print("- {} is left out: {}\n", strategy, why);
}

void run_walk(const CLI::App& command, const WalkRequest& request) {
  const Overrides given = overrides_given_to(command, {}, request.file);
  WalkToy toy = request.toy;
  toy.ranks = request.ranks.value_or(toy.ranks);
  const std::string toy_text = request.file.empty() ? toy_config(toy) : std::string();
  if (!request.file.empty()) warn_of_planned_card(read_config_given_to(command, request.file).config);
  const ReadBefore read = [&](const Overrides& last) {
    Overrides words = given;
    words.insert(words.end(), last.begin(), last.end());
    return request.file.empty() ? read_config_text(toy_text, "the toy of weft walk", words)
                                : read_config(request.file, words);
  };
  const Config config = read({}).config;
  require_ranks(request, config);
  if (request.rank < 0 || request.rank >= config.parallelism.pipeline) {
    fail_request("weft walk: error: --rank {} is not one of the {} ranks of the pipeline", request.rank,
                 config.parallelism.pipeline);
  }
  print_walks(walk_strategies(read, request), request);
}

}  // namespace

void add_walk_command(CLI::App& program) {
  const auto [command, request] = add_command<WalkRequest>(
      program, "walk", "gathers, computations, frees and reductions of one rank in a step, line by line", run_walk);
  CLI::Option* config = add_config_arguments(command, request.file);
  config->description("TOML file that describes the run; without it a toy model is walked");
  command
      .add_option(
          "--strategy", request.strategies,
          "full_shard, shard_grad_op, optimizer, no_shard, hybrid, \"island N\" or all; several times. By itself "
          "all of the toy, and CONFIG as it is")
      ->allow_extra_args(false);
  command.add_option("--ranks", request.ranks, "of the toy, or the world that CONFIG must have");
  const auto of_the_toy = [&](CLI::Option* option) { option->excludes(config); };
  of_the_toy(command.add_option("--blocks", request.toy.blocks, "of the toy")->capture_default_str());
  of_the_toy(command.add_option("--hidden", request.toy.hidden, "of the toy")->capture_default_str());
  of_the_toy(command.add_option("--microbatches", request.toy.microbatches, "of the toy")->capture_default_str());
  of_the_toy(command.add_flag("--moe", request.toy.moe, "every second block of the toy has experts"));
  command.add_option("--rank", request.rank, "pipeline rank whose list is walked")->capture_default_str();
  command.add_flag("--segments", request.segments, "a line for each part of a block");
  command.add_flag("--summary", request.summary, "only the comparison of strategies");
  command.add_flag("--json", request.json, "print one JSON document");
}

}  // namespace weft
