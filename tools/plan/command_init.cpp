// `weft init`: a commented configuration for data, a model size and a device at hand, in a layout that fits. `weft
// keys`: all that a configuration can say.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <system_error>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/spread_work.h"
#include "tools/command/commands.h"
#include "tools/plan/plan_search.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/hardware_table.h"
#include "trainer/data/data.h"
#include "trainer/data/token_facts.h"
#include "trainer/data/token_file.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/first_run.h"
#include "trainer/planning/search.h"
#include "trainer/rank/backend.h"
#include "trainer/run/start_check.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {
namespace {

constexpr const char* init_command = "weft init";

struct InitArguments {
  std::vector<std::string> files, held_out;
  std::string output = {}, tokenizer = {}, device = "auto";
  std::optional<int> ranks;
  FirstRunRequest request;
};

// The tokenizer that wrote a dataset, if that is known.
std::string tokenizer_of(const std::vector<std::string>& files) {
  std::string name = "byte";
  for (std::size_t f = 0; f < files.size(); ++f) {
    const auto facts = find_token_facts(files[f]);
    const bool text = !facts && TokenFile(files[f]).format() == TokenFormat::text;
    if (!facts && !text) {
      fail_request("{}: error: \"{}\" does not say which tokenizer made it; name it with --tokenizer", init_command,
                   files[f]);
    }
    const std::string own = facts ? facts->tokenizer : "byte";
    if (f > 0 && own != name) {
      fail_request("{}: error: \"{}\" has tokens of \"{}\", files before it of \"{}\"", init_command, files[f], own,
                   name);
    }
    name = own;
  }
  return name;
}

void take_data(const InitArguments& arguments, FirstRunRequest& request) {
  request.data.tokenizer = arguments.tokenizer.empty() ? tokenizer_of(arguments.files) : arguments.tokenizer;
  if (request.data.tokenizer == "none") {
    fail_request("{}: error: without a tokenizer the vocabulary is not known; write the file by hand (weft keys)",
                 init_command);
  }
  const std::int64_t tokens = open_tokenizer(request.data.tokenizer)->vocab_size();
  // Tensor ranks share the vocabulary, and hardware multiplies such widths faster.
  constexpr std::int64_t unit = 64;
  request.vocab_size = (tokens + unit - 1) / unit * unit;
  request.data.padded_vocab = request.vocab_size > tokens;
  std::int64_t documents = 0;
  for (const std::string& name : arguments.files) {
    const TokenFile file(name, tokens);
    documents += file.documents();
    // Prompts with answers are short and have nothing to do with each other.
    if (file.has_losses()) request.data.documents = Documents::pack;
    request.data.train.emplace_back(name);
  }
  request.validation.data = arguments.held_out;
  // Held out by documents, where there are enough for one in a hundred to say something.
  constexpr std::int64_t enough = 1000;
  if (arguments.held_out.empty() && documents >= enough) {
    request.data.split = "99,1,0";
    request.validation.split = true;
  }
}

// The data of the request as its run reads them.
TokenDataset read_by(const FirstRunRequest& request) {
  Config config;
  config.data = request.data;
  config.model.vocab_size = request.vocab_size;
  config.training.sequence_length = request.sequence_length;
  return training_data(config);
}

void take_device(const InitArguments& arguments, FirstRunRequest& request) {
  const int gpus = cuda_devices();
  const bool elsewhere = !request.hardware.empty() && request.hardware != "cpu";
  if ((arguments.device == "cpu" && elsewhere) || (arguments.device == "cuda" && request.hardware == "cpu")) {
    fail_request("{}: error: --device {} and --hardware {} contradict each other; leave one out", init_command,
                 arguments.device, request.hardware);
  }
  const bool gpu = arguments.device == "cuda" || (arguments.device == "auto" && (gpus > 0 || elsewhere));
  request.device = gpu ? DeviceKind::cuda : DeviceKind::cpu;
  if (gpu && request.hardware.empty()) {
    const std::string card = cuda_card().value_or("");
    const Hardware* known = hardware_named(card);
    if (known == nullptr) {
      fail_request("{}: error: {}; name a card to plan for with --hardware (weft hardware lists them)", init_command,
                   card.empty() ? "no GPU can be used here" : fmt::format("nothing is known of the card \"{}\"", card));
    }
    request.hardware = known->name;
  }
  constexpr int most_threads = 8;
  const int here = gpu ? std::max(gpus, 1) : std::min(static_cast<int>(host_cores()), most_threads);
  request.ranks = arguments.ranks.value_or(here);
  if (!gpu) request.memory = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE) / request.ranks;
}

std::map<std::string, std::string> reasons_of(const Config& config, const SampleOrder& order, const SearchSpace& space,
                                              const SearchResult& result) {
  const ParameterCount count = count_parameters(config.model);
  const std::int64_t step = config.training.global_batch_size * config.training.sequence_length;
  const auto tokens = static_cast<double>(step * config.run.steps);
  const std::string found = fmt::format("the fastest of {} choices by weft plan --search", result.counts.choices);
  std::map<std::string, std::string> reasons = {
      {"run.steps", fmt::format("{:.3g} tokens: {:.3g} for each active parameter, {:.3g} passes over the data", tokens,
                                tokens / static_cast<double>(count.active),
                                order.passes(config.run.steps * config.training.global_batch_size).front())},
      {"model.layers", fmt::format("d dense, e experts: {} parameters, {} active for a token",
                                   grouped_digits(count.total), grouped_digits(count.active))},
      {"training.global_batch_size", fmt::format("sequences a step: {} tokens", grouped_digits(step))},
      {"training.microbatch_size", "sequences at once; " + found},
      {"optimizer.learning_rate", "the peak, by the compute of the run (DeepSeek LLM, section 3.1)"},
      {"data.documents", "prompts with answers: each is whole in a sequence, and sees no other"},
      {"data.split", "documents to train on, to validate on, and left"},
  };
  if (space.world > 1) {
    reasons["parallelism.pipeline"] =
        fmt::format("ranks that share the stages; {} ranks in all, {}", space.world, found);
  }
  return reasons;
}

std::string head_of(const std::string& output, const Config& config, const SearchSpace& space,
                    const SearchResult& result) {
  const SearchedPlan& best = result.plans.front();
  const double seconds = best.time.seconds * static_cast<double>(config.run.steps);
  const bool launched = config.run.launch == LaunchKind::processes;
  // `weft launch` starts ranks of one machine.
  const std::string launcher = !launched ? "weft "
                               : space.world > space.hardware.node_ranks()
                                   ? "srun weft "
                                   : fmt::format("weft launch --ranks {} -- ", space.world);
  return fmt::format(
      "# Written by weft init. Every value may be changed; weft keys lists all keys.\n"
      "#   weft check {0}\n"
      "#   weft plan {0}\n"
      "#   {1}train {0}\n"
      "# On {2} {3} of {4} a step takes {5}, and the run {6:.2g} {7}.\n"
      "# These times are {8}.\n"
      "# Memory of the fullest rank: {9}.\n",
      shell_text({output}), launcher, space.world, space.world == 1 ? "rank" : "ranks", space.hardware.name,
      format_time(best.time.seconds, false), seconds < 3600.0 ? seconds / 60.0 : seconds / 3600.0,
      seconds < 3600.0 ? "minutes" : "hours", certainty_of(space).text, best.verdict.text());
}

void write_first_run(InitArguments arguments) {
  FirstRunRequest& request = arguments.request;
  if (request.experts > 0 && request.experts_per_token > request.experts) {
    fail_request("{}: error: --experts-per-token {} of --experts {}", init_command, request.experts_per_token,
                 request.experts);
  }
  const std::string output = arguments.output.empty() ? request.name + ".toml" : arguments.output;
  if (std::filesystem::exists(output)) {
    fail_request("{}: error: \"{}\" exists; remove it, or name another with --output", init_command, output);
  }
  take_data(arguments, request);
  take_device(arguments, request);
  if (request.sequence_length == 0) request.sequence_length = usual_length(request.parameters);
  std::optional<TokenDataset> data;
  if (const auto why = refusal_of([&] { data.emplace(read_by(request)); })) {
    fail_request("{}: error: \"{}\" is not written:\n{}", init_command, output, *why);
  }
  request.data_tokens = std::llround(static_cast<double>(request.sequence_length) / data->order().passes(1).front());
  Config config = first_run(request);
  // The search reads a file, as a user's.
  const std::string draft = output + ".draft";
  if (std::filesystem::exists(draft)) {
    fail_request("{}: error: \"{}\" exists, the name of a draft; remove it, or name another with --output",
                 init_command, draft);
  }
  write_result(init_command, first_run_toml(config, "", {}), draft);
  struct Removed {
    const std::string& name;
    ~Removed() {
      std::error_code ignored;
      std::filesystem::remove(name, ignored);
    }
  } removed{draft};
  // The draft does not stay, so a refusal of it says what was not written.
  const auto expect_taken = [&](const std::function<void()>& read) {
    auto why = refusal_of(read);
    if (!why) return;
    for (std::size_t at = 0; (at = why->find(draft, at)) != std::string::npos; at += output.size()) {
      why->replace(at, draft.size(), output);
    }
    fail_request("{}: error: \"{}\" is not written, for weft check would refuse it:\n{}", init_command, output, *why);
  };
  SearchSpace space;
  expect_taken([&] { space = search_space(draft, {}, {}); });
  const SearchResult result = shown_search(space, {.top = 1, .threads = host_cores()});
  if (result.plans.empty()) refuse_empty(init_command, space, result);
  config = config_of(space, result.plans.front().choice);
  const std::string text =
      first_run_toml(config, head_of(output, config, space, result), reasons_of(config, data->order(), space, result));
  write_result(init_command, text, draft);
  expect_taken([&] { check_start(read_config(draft)); });
  write_result(init_command, text, output);
  fmt::print("{}", text.substr(0, text.find("\n\n") + 1));
}

}  // namespace

void add_init_command(CLI::App& program) {
  const auto [command, arguments] = add_command<InitArguments>(
      program, "init", "a commented configuration for data, model size and device, in a layout that fits",
      write_first_run);
  FirstRunRequest& request = arguments.request;
  const std::map<std::string, double> suffixes = {{"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  command.add_option("FILE", arguments.files, "texts, or tokens of weft data tokenize (PREFIX.bin)")->required();
  command.add_option("--parameters", request.parameters, "about how many the model has: 15M, 1.5B")
      ->required()
      ->transform(CLI::AsNumberWithUnit(suffixes))
      ->check(positive());
  command.add_option("--output", arguments.output, "the configuration; NAME.toml without it");
  command.add_option("--name", request.name, "of the run")->capture_default_str();
  CLI::Option* experts =
      command.add_option("--experts", request.experts, "of each block but the first; 0: a dense model")
          ->check(CLI::Range(0, 4096));
  command.add_option("--experts-per-token", request.experts_per_token, "of them")
      ->check(CLI::Range(1, 4096))
      ->needs(experts)
      ->capture_default_str();
  command.add_option("--tokenizer", arguments.tokenizer, "of the data, where it does not say so itself");
  command.add_option("--validation", arguments.held_out,
                     "held-out files; without them one in a hundred documents, if there are 1000");
  command
      .add_option(
          "--tokens", request.tokens,
          "to train on: 300M; without it 20 for each active parameter, at most 4 passes over the data or a step")
      ->transform(CLI::AsNumberWithUnit(suffixes))
      ->check(positive());
  command.add_option("--sequence-length", request.sequence_length, "tokens; without it by the size of the model")
      ->check(CLI::Range(1, 1 << 24));
  command.add_option("--device", arguments.device, "cpu, cuda, or auto: a GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command.add_option("--hardware", request.hardware, "the card, of weft hardware; without it this machine's")
      ->check(not_empty());
  command
      .add_option("--ranks", arguments.ranks,
                  "GPUs, or threads of a CPU; without it all of this machine, at most "
                  "8 threads")
      ->check(CLI::Range(1, 1 << 20));
}

void add_keys_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("keys", "every key of CONFIG with its default and its meaning");
  command->callback([] {
    const auto meaning = [](const ConfigKey& key) { return (key.required ? "required: " : "") + key.help; };
    const Config defaults;
    fmt::print("{}", write_config(defaults, config_schema(), meaning));
  });
}

}  // namespace weft
