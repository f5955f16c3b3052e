#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>

#include "parallel/comm/process_environment.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/spread_work.h"
#include "parallel/runtime/standard_error.h"
#include "tools/command/commands.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/config/config.h"
#include "trainer/config/config_messages.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/config_sources.h"
#include "trainer/costs/hardware.h"
#include "trainer/data/documents.h"
#include "trainer/inference/forward_run.h"
#include "trainer/resolve/chosen_timing.h"
#include "trainer/run/start_check.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

// "layout show": the words of the command after "weft".
std::string full_name(const CLI::App& command) {
  std::string name = command.get_name();
  for (const CLI::App* above = command.get_parent(); above && above->get_parent(); above = above->get_parent()) {
    name = above->get_name() + " " + name;
  }
  return name;
}

// For an unknown option: the key whose section was left out, as in --steps=5.
std::string key_suggestion(const std::string& argument) {
  if (!argument.starts_with("--")) return {};
  std::vector<std::string> paths;
  for (const ConfigKey& key : config_schema()) paths.push_back(key.path());
  const std::size_t equals = std::min(argument.find('='), argument.size());
  const auto near = nearest_path(argument.substr(2, equals - 2), paths);
  if (!near) return {};
  const std::string value = equals == argument.size() ? "=VALUE" : argument.substr(equals);
  return fmt::format(": did you mean --{}{}? Keys need their section; weft keys lists them", *near, value);
}

// `wanted` is a number with that property, in words.
CLI::Validator number_check(const char* wanted, bool (*holds)(double)) {
  return {[=](const std::string& text) {
            double value = 0;
            const bool good = CLI::detail::lexical_cast(text, value) && holds(value);
            return good ? std::string{} : fmt::format("\"{}\" is not {}", text, wanted);
          },
          ""};
}

// Beginnings of the keys that a forward of saved weights reads. The rules of a training step judge its layout, so all
// of schedule and sharding is among them. An automatic layout asks for the hardware.
constexpr const char* forward_keys[] = {
    "model.",
    "parallelism.",
    "pipeline.",
    "shard.",
    "precision.",
    "run.device",
    "run.launch",
    "run.ranks_per_device",
    "run.registered_buffers",
    "run.attention",
    "run.deterministic",
    "run.measured_products",
    "run.captured_regions",
    "run.communication_timeout_seconds",
    "training.sequence_length",
    "training.global_batch_size",
    "training.microbatch_size",
    "training.weights_at_experts",
    "data.tokenizer",
    "data.padded_vocab",
    "hardware.",
};

// All keys, of which the others are read where weights are trained. `more`: keys that this command reads besides.
std::vector<ConfigKey> schema_of_forwards(const CLI::App& command, const std::vector<std::string>& more) {
  const bool draws = command.get_option_no_throw("--seed") != nullptr;
  std::vector<ConfigKey> schema = config_schema();
  for (ConfigKey& key : schema) {
    const std::string path = key.path();
    const bool of_gradients = key.section.starts_with("precision") && key.name == "reduction";
    const bool reads = std::ranges::any_of(forward_keys, [&](const char* begin) { return path.starts_with(begin); });
    if ((reads && !may_differ(path) && !of_gradients) || std::ranges::count(more, path) > 0) continue;
    const char* other = draws && path == "run.seed" ? "; --seed is that of the text" : "";
    const KeyCondition trains{fmt::format("weights are trained{}", other), [](const Config&) { return false; }};
    key.read_where.insert(key.read_where.begin(), trains);
  }
  return schema;
}

}  // namespace

CLI::Validator positive() {
  return number_check("a number above 0", [](double value) { return value > 0 && std::isfinite(value); });
}
CLI::Validator not_negative() {
  return number_check("a number of 0 or more", [](double value) { return value >= 0 && std::isfinite(value); });
}

std::string write_fault(const std::string& file) {
  std::error_code unknown;
  if (std::filesystem::is_other(file, unknown)) return {};  // the reader of a pipe would see its end
  int descriptor = open(file.c_str(), O_WRONLY | O_CLOEXEC);
  const bool absent = descriptor < 0 && errno == ENOENT;
  if (absent) descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno == EEXIST ? "" : std::strerror(errno);  // a link to a file that is yet to come
  close(descriptor);
  if (absent) unlink(file.c_str());
  return {};
}

CLI::Validator writable() {
  return {[](const std::string& file) {
            const std::string fault = write_fault(file);
            return fault.empty() ? fault : fmt::format("{} cannot be written: {}", file, fault);
          },
          ""};
}

void refuse_replaced_sources(const CLI::App& command, const std::filesystem::path& config) {
  for (const char* name : {"--output", "--pareto", "--csv", "--svg"}) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option == nullptr || option->empty()) continue;
    const std::string& output = option->results().back();
    for (const std::filesystem::path& source : gather_sources(config, read_text(config), {}).files) {
      std::error_code absent;
      if (!std::filesystem::equivalent(output, source, absent)) continue;
      fail_request("weft {}: error: {} would replace {}, of which the configuration is read; choose another {}",
                   full_name(command), output, source.string(), name);
    }
  }
}

CLI::Validator seed() {
  return {[](const std::string& text) {
            const bool good = parsed_number<std::uint64_t>(text).has_value();
            return good ? std::string{}
                        : fmt::format("\"{}\" is not a whole number from 0 to 18446744073709551615", text);
          },
          ""};
}

CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? std::string("is empty") : std::string(); }, ""};
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  bool open = false;  // a word has begun
  char quote = 0;
  for (const char c : text) {
    if (quote == 0 && (c == ' ' || c == '\n' || c == '\t')) {
      open = false;
      continue;
    }
    if (!open) words.emplace_back();
    open = true;
    if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) fail_request("weft: error: in {} a {} is not closed", text, quote);
  return words;
}

void write_result(const std::string& command, const std::string& text, const std::string& output) {
  if (output.empty()) return fmt::print("{}", text);
  std::ofstream file(output);
  if (!file) fail_request("{}: error: {} cannot be written: {}", command, output, std::strerror(errno));
  if (!(file << text) || !file.flush()) fail("{} cannot be written: {}", output, std::strerror(errno));
}

CLI::Option* add_config_arguments(CLI::App& command, std::string& file) {
  command.allow_extras();
  command.footer("Any key of CONFIG can be given as --section.key=value, the value in TOML syntax.");
  return command.add_option("CONFIG,--config", file, "TOML file that describes the run");
}

void add_repeated_option(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                         const std::string& help) {
  command.add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);
}

void refuse_given(const CLI::App& command, const char* name, const char* why) {
  if (command.count(name) > 0) fail_request("weft {}: error: {} {}", full_name(command), name, why);
}

void add_document_options(CLI::App& command, std::vector<std::string>& files, DocumentRules& rules) {
  command.add_option("FILE", files, "texts, or .jsonl; both may be packed as .gz or .zst")->required();
  command.add_option("--key", rules.key, "of the text in an object of JSON lines; a.b for b in a")
      ->check(not_empty())
      ->capture_default_str();
  command.add_option("--documents", rules.text, "what a document is in a plain text: file, or line")
      ->transform(
          one_of(std::map<std::string, TextDocuments>{{"file", TextDocuments::file}, {"line", TextDocuments::line}}))
      ->option_text("file|line");
  command.add_option("--bad-lines", rules.bad_lines, "JSON lines without the text: refuse, or skip")
      ->transform(one_of(std::map<std::string, BadLines>{{"refuse", BadLines::refuse}, {"skip", BadLines::skip}}))
      ->option_text("refuse|skip");
}

void refuse_unread(const CLI::App& command, const DocumentReader& documents) {
  if (!documents.has_json()) refuse_given(command, "--key", "is of JSON lines, and no FILE is named so");
  if (!documents.has_text()) refuse_given(command, "--documents", "is of plain text, and every FILE is JSON lines");
}

void tell_skipped(const DocumentReader& documents) {
  const std::int64_t lines = documents.skipped();
  if (lines > 0) fmt::print("{} {} left out\n", grouped_digits(lines), lines == 1 ? "line was" : "lines were");
}

void add_cost_options(CLI::App& command, std::string& costs, std::string& hardware) {
  command.add_option("--costs", costs,
                     "a table FILE.toml, the directory of a run with traces, or words: \"forward=1 gather=0.5\"");
  command
      .add_option("--hardware", hardware,
                  "costs modelled for a card that weft hardware lists; without --costs either, as pipeline.costs says")
      ->check(not_empty());
}

GivenWords words_given_to(const CLI::App& command, const Overrides& options) {
  const std::string name = full_name(command);
  GivenWords given;
  auto& [overrides, faults] = given;
  for (const std::string& argument : command.remaining()) {
    const std::size_t dot = argument.find('.'), equals = argument.find('=');
    const bool dotted = dot != std::string::npos && dot < equals;
    // The text ends in files that are UTF-8: config.toml, JSON.
    if (malformed_at(argument)) {
      faults += fmt::format("weft {}: error: {} is not UTF-8\n", name, *replace_malformed(argument));
    } else if (dotted && equals != std::string::npos) {
      overrides.push_back(argument);
    } else if (dotted && argument.starts_with("--")) {
      faults += fmt::format("weft {}: error: {} has no value; write {}=value\n", name, argument, argument);
    } else {
      const char* what = argument.starts_with("-") ? "unknown option" : "unexpected argument";
      std::string advice = key_suggestion(argument);
      if (advice.empty()) advice = fmt::format("; see weft {} --help", name);
      faults += fmt::format("weft {}: error: {} {}{}\n", name, what, argument, advice);
    }
  }
  overrides.insert(overrides.end(), options.begin(), options.end());
  faults += refusal_of([&] { require_keys_once(overrides); }).value_or("");
  if (faults.ends_with('\n')) faults.pop_back();
  return given;
}

Overrides overrides_given_to(const CLI::App& command, const Overrides& options, const std::string& file) {
  auto [overrides, faults] = words_given_to(command, options);
  if (faults.empty()) return overrides;
  const std::string of_keys = file.empty() ? "" : key_faults(file, overrides);
  fail_request("{}{}{}", faults, of_keys.empty() ? "" : "\n", of_keys);
}

void print_warnings(const Config& config, const std::vector<std::string>& warnings) {
  const bool process = config.run.launch == LaunchKind::processes;
  if (process && find_process_place().value_or(ProcessPlace{}).rank != 0) return;
  for (const std::string& warning : warnings) say("weft: warning: {}\n", warning);
}

void warn_of_planned_card(const Config& config) {
  constexpr double much_faster = 2.0;
  const Hardware card = hardware_of(config);
  std::vector<std::string> warnings;
  if (auto misplaced = misplaced_expert_nodes(config)) warnings.push_back(std::move(*misplaced));
  if (config.run.device == DeviceKind::cpu && card.name != "cpu") {
    warnings.push_back(
        fmt::format("the plan is for {} (hardware.name), but run.device = \"cpu\": weft train would compute on the CPU",
                    card.name));
  }
  // hardware.flops_per_second would replace one of the two rates alone.
  const double times = card.flops_per_second_16bit.value / card.flops_per_second_float32.value;
  const bool float32 = config.precision_of(Family::dense).compute == DType::float32;
  if (float32 && card.name != "cpu" && times >= much_faster && !config.hardware.flops_per_second) {
    warnings.push_back(fmt::format(
        "precision.compute = \"float32\": products are {:.1f} times slower than in bfloat16 on {}", times, card.name));
  }
  print_warnings(config, warnings);
}

void warn_of_training(const Config& config) {
  print_warnings(config, kept_whole_warnings(config));
  if (!config.data.train.empty()) print_warnings(config, start_warnings(config, host_cores()));
}

Config read_config_of_checkpoint(const CLI::App& command, const std::filesystem::path& folder, Overrides more,
                                 const std::vector<std::string>& keys) {
  constexpr const char* batch_key = "training.global_batch_size";
  const std::string file = (folder / checkpoint_config_name).string();
  CheckpointReader(folder).require_texts_unchanged();
  const Config given = read_undecided(file, overrides_given_to(command, more, file),
                                      [&](const std::string& path) { return path == batch_key; });
  std::int64_t unit = given.training.microbatch_size * given.parallelism.data();
  // Forwards do not follow the order of training, but its rule is asked: every schedule takes twice its ranks, in whole
  // groups. A file takes its own number alone.
  if (!given.pipeline.own_order) {
    unit *= std::int64_t{2} * given.parallelism.pipeline * std::max(1, given.pipeline.microbatch_group);
  }
  const std::int64_t batch = (given.training.global_batch_size + unit - 1) / unit * unit;
  more.push_back(fmt::format("--{}={}", batch_key, batch));
  Config config = read_config_given_to(command, file, more, schema_of_forwards(command, keys)).config;
  take_kept_tokenizer(config, folder);
  if (forces_balance(config.model)) print_warnings(config, {std::string(forced_balance_text)});
  return config;
}

ResolvedConfig read_config_given_to(const CLI::App& command, const std::string& file, const Overrides& more,
                                    std::vector<ConfigKey> schema) {
  Overrides overrides = overrides_given_to(command, {}, file);
  overrides.insert(overrides.end(), more.begin(), more.end());
  require_utf8(file);
  refuse_replaced_sources(command, file);
  ResolvedConfig resolved = read_typed_config(file, overrides, std::move(schema));
  print_warnings(resolved.config, resolved.warnings);
  return resolved;
}

void require_utf8(const std::string& name) {
  if (const auto shown = replace_malformed(name)) fail_request("{}: the name is not UTF-8", *shown);
}

void require_names(const std::string& from, const std::string& to) {
  for (const std::string& path : {from, to}) {
    std::error_code unknown;
    require_utf8(path);
    require_utf8(std::filesystem::weakly_canonical(std::filesystem::absolute(path, unknown), unknown).string());
  }
  const std::filesystem::path place(to), name = (place.has_filename() ? place : place.parent_path()).filename();
  if (named_step(name.string()).value_or(0) != 0) {
    fail_request("{}: the name is that of a later step, and the new checkpoint is of step 0", to);
  }
}

Config without_files(Config config) {
  config.checkpoint = {};
  config.checkpoint.resume = config.checkpoint.at_end = false;
  // No folder is below a device: checkpoints of the configuration's own run are neither found nor in the way.
  config.checkpoint.directory = "/dev/null";
  config.profiling = {};
  // Work between steps, which is none of a step's time; a best checkpoint, and what a spike saves, are files too.
  config.validation = {};
  config.spikes = {};
  config.metrics.interval = std::numeric_limits<std::int64_t>::max();
  return config;
}

CLI::Option* add_checkpoint_argument(CLI::App& command, const std::string& name, std::string& path) {
  return command
      .add_option(name, path, "a checkpoint; of a folder of checkpoints or the directory of a run, its newest")
      ->required();
}

std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path) {
  const CheckpointFolder found = resolve_checkpoint(path);
  try {
    return std::make_unique<CheckpointReader>(found.path);
  } catch (const Error& error) {
    fail("{}", error.what());
  }
}

}  // namespace weft
