#include "trainer/run/start_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/start.h"
#include "trainer/config/config.h"
#include "trainer/config/config_messages.h"
#include "trainer/costs/cost_table.h"
#include "trainer/costs/hardware.h"
#include "trainer/data/text_windows.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_programs.h"
#include "trainer/run/run_directory.h"

namespace weft {
namespace {

// The text with the place of the first of `keys` that the configuration sets.
std::string placed(const ResolvedConfig& resolved, const std::vector<std::string>& keys, const std::string& text) {
  for (const std::string& key : keys) {
    if (const auto found = resolved.said.find(key); found != resolved.said.end()) {
      return format_fault({found->second.place, text});
    }
  }
  return text;
}

constexpr std::array keys_of_any_start = {"checkpoint.start_from", "checkpoint.resume", "checkpoint.directory",
                                          "run.directory"};

// The keys that begin lines of a refusal, as those do that differ from a checkpoint's; then those of checkpoints.
std::vector<std::string> keys_of_start(const std::string& refusal) {
  std::vector<std::string> keys;
  std::istringstream lines(refusal);
  for (std::string line; std::getline(lines, line);) keys.push_back(line.substr(0, line.find(' ')));
  keys.insert(keys.end(), keys_of_any_start.begin(), keys_of_any_start.end());
  return keys;
}

// Why a file of tokens cannot be opened, whatever the model; empty if it can.
std::string opening_fault(const std::string& name) {
  return refusal_of([&] { const TokenFile file(name); }).value_or("");
}

// The faults of the files of a run. Without `sound` the files are only opened. `data` is the training data if nothing
// is wrong with them.
std::vector<std::string> data_faults(const ResolvedConfig& resolved, bool sound, std::optional<TokenDataset>& data) {
  std::vector<std::string> faults;
  const Config& config = resolved.config;
  const std::int64_t length = config.training.sequence_length;
  TextVocabulary vocabulary;
  if (const auto refused = refusal_of([&] { vocabulary = open_vocabulary(config); })) {
    faults.push_back(placed(resolved, {"data.tokenizer"}, "data.tokenizer: " + *refused));
  } else if (const auto other = sound ? refusal_of([&] { require_fit(config, vocabulary); }) : std::nullopt) {
    faults.push_back(placed(resolved, {"model.vocab_size", "data.tokenizer"}, *other));
  }
  const bool fits = sound && faults.empty();  // tokens of the files can be compared with those of the model
  std::size_t file = 0;
  for (const ConfigValue& name : elements_of(resolved.said.at("data.train"))) {
    const std::string& path = config.data.train[file++].path;
    const std::string fault =
        fits ? token_file_fault(path, vocabulary, least_length(config.data.documents, length)) : opening_fault(path);
    if (!fault.empty()) faults.push_back(format_fault({name.place, "data.train: " + fault}));
  }
  // The order and the part for validation need files without faults.
  const bool readable = sound && faults.empty();
  if (const auto order = readable ? refusal_of([&] { data.emplace(training_data(config)); }) : std::nullopt) {
    faults.push_back(placed(resolved, {"data.split", "data.order", "data.train"}, *order));
  }
  const ValidationConfig& validation = config.validation;
  for (const std::string& name : fits ? std::vector<std::string>() : validation.data) {
    const std::string fault = opening_fault(name);
    if (!fault.empty()) faults.push_back(placed(resolved, {"validation.data"}, "validation.data: " + fault));
  }
  const auto held_out = refusal_of([&] {
    const std::int64_t most = validation.batches * config.training.global_batch_size;
    if (fits && !validation.data.empty()) {
      TextWindows(validation.data, length, vocabulary, config.data.documents, "validation.data").keep(most);
    } else if (validation.split && readable) {
      TextWindows(config.data, length, vocabulary).keep(most);
    }
  });
  if (held_out) faults.push_back(placed(resolved, {"validation.data", "validation.split"}, *held_out));
  return faults;
}

// The faults of the files and folders of a run, as data_faults().
std::vector<std::string> start_faults(const ResolvedConfig& resolved, bool sound, std::optional<TokenDataset>& data) {
  const Config& config = resolved.config;
  std::vector<std::string> faults = data_faults(resolved, sound, data);
  for (const auto& [key, folder] : {std::pair("run.directory", config.run.directory),
                                    std::pair("checkpoint.directory", config.checkpoint_directory())}) {
    if (resolved.doubtful.contains(key)) break;
    const std::string fault = folder_fault(folder, key);
    if (fault.empty()) continue;
    faults.push_back(placed(resolved, {key}, fault));
    break;  // without run.directory there is no folder in it
  }
  const auto refused = refusal_of([&] {
    if (data) return require_usable_start(config, *data);
    const auto doubted = [&](const char* key) { return resolved.doubtful.contains(key); };
    if (std::ranges::none_of(keys_of_any_start, doubted)) starting_point(config);
  });
  if (refused) faults.push_back(placed(resolved, keys_of_start(*refused), *refused));
  const bool has_table = config.pipeline.has_cost_table();
  if (const auto table = has_table ? refusal_of([&] { configured_cost_table(config.pipeline.costs); }) : std::nullopt) {
    faults.push_back(*table);
  }
  return faults;
}

}  // namespace

CheckedStart check_step(const Config& config) {
  const ResolvedRun run(config);
  StepPrograms programs(run);
  CheckedStart start{.program = programs.of_first_rank(), .predicted = {}, .reading = {}};
  const auto peak = [&](Routing routing) {
    const std::int64_t of_step = fullest_peak(programs, routing).total();
    if (!config.validation.takes_place()) return of_step;
    return std::max(of_step, fullest_validation_peak(programs, routing).total());
  };
  start.predicted.even = peak(Routing::even);
  if (routing_decides(config)) start.predicted.worst = peak(Routing::worst);
  return start;
}

CheckedStart check_start(const ResolvedConfig& resolved) {
  const Config& config = resolved.config;
  if (config.data.train.empty()) fail_request("data.train names no file; give at least one");
  std::optional<TokenDataset> data;
  std::vector<std::string> faults = start_faults(resolved, /*sound=*/true, data);
  CheckedStart start;
  const auto step = refusal_of([&] { start = check_step(config); });
  // A table of costs is a file of the run, and of its step.
  if (step && std::ranges::find(faults, *step) == faults.end()) faults.push_back(*step);
  if (!faults.empty()) throw Error(ErrorKind::request, fmt::format("{}", fmt::join(faults, "\n")));
  start.reading = reading_text(config, *data);
  return start;
}

std::vector<std::string> named_faults(const ResolvedConfig& resolved) {
  std::optional<TokenDataset> none;
  if (resolved.config.data.train.empty() || resolved.doubtful.contains("data.train")) return {};
  return start_faults(resolved, /*sound=*/false, none);
}

std::optional<std::string> misplaced_expert_nodes(const Config& config) {
  const Degrees& d = config.parallelism;
  const Hardware card = hardware_of(config);
  const bool all_threads = card.name == "cpu" && !config.hardware.ranks_per_node;
  if (d.expert_dispatch != ExpertDispatch::hierarchical || d.expert == 1 || all_threads) return std::nullopt;
  const int group = d.expert * d.expert_tensor, node = card.node_ranks();
  if (group / d.expert_nodes == node) return std::nullopt;
  const int nodes = group % node == 0 ? group / node : 1;
  return fmt::format(
      "parallelism.expert_nodes = {} makes {} ranks a node of an expert group, and {} has {} "
      "(hardware.ranks_per_node): "
      "tokens take the way between nodes where there is none, or rows leave one; {}",
      d.expert_nodes, group / d.expert_nodes, card.name, node,
      nodes > 1 && d.expert % nodes == 0 ? fmt::format("{} would fit", nodes)
                                         : "no number fits, expert_dispatch \"all_to_all\" needs none");
}

std::vector<std::string> start_warnings(const Config& config, std::size_t cores) {
  std::vector<std::string> warnings;
  if (config.checkpoint.interval == 0 && !config.checkpoint.at_end && !config.validation.keep_best) {
    warnings.emplace_back(
        "checkpoint.interval is 0 and checkpoint.at_end false: the run leaves no weights, unless a signal asks for "
        "them");
  }
  if (std::string unmarked = unmarked_documents(config.data); !unmarked.empty()) {
    warnings.push_back(unmarked + "; weft data tokenize writes them");
  }
  if (std::string untold = untold_tokenizer(config.data); !untold.empty()) warnings.push_back(std::move(untold));
  const MoeConfig& moe = config.model.moe;
  const bool routes = config.model.has(BlockKind::moe) && moe.num_experts > moe.num_experts_per_tok;
  if (forces_balance(config.model)) warnings.emplace_back(forced_balance_text);
  const bool moves = moe.selection_bias && moe.bias_update_rate > 0.0;
  if (routes && moe.router_aux_loss_coef == 0.0 && !moves && !moe.force_balance &&
      !config.training.frozen.contains(Family::routing)) {
    warnings.emplace_back(
        "model.moe.router_aux_loss_coef is 0: nothing balances the experts, and a few may get all tokens; 0.01 is "
        "usual, or model.moe.selection_bias = true");
  }
  if (routes && moe.choices() == 1 && moe.norm_topk_prob && !moe.force_balance &&
      config.training.trains(Family::routing)) {
    warnings.emplace_back(
        "model.moe.norm_topk_prob is true with num_experts_per_tok 1: the one weight is 1 whatever the score, so that "
        "the loss teaches routers nothing except rounding; false lets them learn");
  }
  if (config.run.captured_regions && config.parallelism.context > 1) {
    warnings.push_back(fmt::format(
        "run.captured_regions captures no segment with attention: under parallelism.context {} each exchanges with "
        "other ranks",
        config.parallelism.context));
  }
  if (auto misplaced = misplaced_expert_nodes(config)) warnings.push_back(std::move(*misplaced));
  constexpr std::size_t most_ranks_of_a_core = 4;
  const auto ranks = static_cast<std::size_t>(config.parallelism.world());
  if (config.run.device == DeviceKind::cpu && ranks > most_ranks_of_a_core * cores) {
    warnings.push_back(fmt::format("{} ranks on {} {} take turns: fewer ranks train as fast", ranks, cores,
                                   cores == 1 ? "core" : "cores"));
  }
  return warnings;
}

}  // namespace weft
