#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/medians.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/config_sources.h"
#include "trainer/diagnosis/run_outputs.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/rank/compute_times.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/run_directory.h"

namespace weft {
namespace {

// Why there is no summary of the last steps. One is written after a step that was taken.
std::string without_summary(const RunOutputs& run) {
  if (run.steps.back().taken()) return "the run goes on, or was killed before its end";
  return fmt::format("the run stopped before the spike of step {}, its first step", run.steps.back().step);
}

// The summary of the run's last part. Throws Error (request) if there is none, or an older Weft wrote it.
Json summary_of(const RunOutputs& run) {
  const std::filesystem::path file = run.directory / summary_file;
  if (run.memory.empty()) {
    fail_request("weft receipt: error: {} {}: {}", run.directory.string(),
                 run.earlier_summary
                     ? fmt::format("has a {} of another configuration than its config.toml", summary_file)
                     : fmt::format("has no {}", summary_file),
                 without_summary(run));
  }
  Json summary = Json::parse(read_text(file));
  for (const char* needed : {"hashes", "time", "goodput", "attention", "versions", "command_line"}) {
    if (!summary.contains(needed)) {
      fail_request("weft receipt: error: {} has no {}: it is of an older version", file.string(), needed);
    }
  }
  return summary;
}

// The steps of the run's last part. Throws Error (request) if they are not those of the summary: a part that takes
// the same steps again has other seconds.
std::span<const StepMetrics> last_part(const RunOutputs& run, const Json& summary) {
  std::span<const StepMetrics> steps = run.steps;
  if (!steps.back().taken()) steps = steps.first(steps.size() - 1);
  const auto first = std::ranges::find_if(steps.rbegin(), steps.rend(),
                                          [](const StepMetrics& step) { return step.hashes.has_value(); });
  steps = steps.last(first == steps.rend() ? 0 : static_cast<std::size_t>(first - steps.rbegin()) + 1);
  RunTotals totals;
  for (const StepMetrics& step : steps) totals.add(step);
  // Sums of the same numbers in the same order are equal.
  if (steps.empty() || totals.steps != summary.at("steps").get<std::int64_t>() ||
      totals.seconds != summary.at("seconds").get<double>()) {
    fail_request(
        "weft receipt: error: {} is not of the last steps in {}: the run was started again and goes on, or was killed "
        "before its end",
        (run.directory / summary_file).string(), metrics_file);
  }
  return steps;
}

Json model_json(const Config& config) {
  const ParameterCount count = count_parameters(config.model);
  Json losses = Json::array();
  const MoeConfig& moe = config.model.moe;
  const auto add = [&](const std::string& name, double coefficient) {
    if (coefficient > 0.0) losses.push_back({{"name", name}, {"coefficient", coefficient}});
  };
  if (config.model.has(BlockKind::moe)) {
    add(fmt::format("load balance, {}", name_of(moe.aux_loss)), moe.router_aux_loss_coef);
    add("router z", moe.router_z_loss_coef);
  }
  if (config.model.mtp_depth > 0) add("predictors", config.model.mtp_loss_coef);
  return {{"layers", config.layers_text},
          {"parameters", count.total},
          {"active_parameters", count.active},
          {"auxiliary_losses", losses},
          {"forced_balance", forces_balance(config.model)}};
}

Json sharding_json(const Config& config) {
  Json families = Json::object();
  for (const Family family : shard_families) {
    if (!has_family(config, family)) continue;
    const ShardPolicy& policy = config.shard_by_family.at(family);
    const UnitPolicy units = resolve_policy(config, family, /*stage=*/0);
    const bool each = units.accumulate_sharded || units.reduce_every == 1;
    std::vector<std::string> by_stage;
    for (const ResidencyChoice& residency : policy.residency_by_stage) by_stage.push_back(to_string(residency));
    families[std::string(name_of(family))] = {
        {"strategy", name_of(policy.strategy)},
        {"residency", policy.residency_by_stage.empty() ? Json(to_string(policy.residency)) : Json(by_stage)},
        {"lookahead", policy.lookahead},
        {"reduction", to_string(policy.reduction)},
        {"accumulation", units.accumulate_sharded ? "sharded" : "unsharded"},
        {"gradients", each                      ? "reduced after each microbatch"
                      : units.reduce_every == 0 ? "reduced after the last microbatch"
                                                : fmt::format("reduced every {} microbatches", units.reduce_every)},
        {"wrap", to_string(policy.wrap)},
        {"backward_prefetch", name_of(policy.backward_prefetch)}};
  }
  return families;
}

Json schedule_json(const Config& config) {
  return {{"name", config.pipeline.schedule},
          {"stages", config.stages()},
          {"microbatches", config.microbatches()},
          {"sequences", config.training.global_batch_size},
          {"sequence_length", config.training.sequence_length}};
}

Json placement_json(const ResolvedRun& run) {
  const Degrees& degrees = run.config().parallelism;
  Json json = {{"stages", to_string(run.layout(), run.config().model)}, {"ranks", degrees.world()}};
  for (const auto& [name, degree] : named_degrees) json[name] = degrees.*degree;
  return json;
}

Json device_json(const Config& config, const Json& summary) {
  return {{"device", name_of(config.run.device)},
          {"card", summary.value("card", Json())},
          {"ranks_are", name_of(config.run.launch)},
          {"attention", summary.at("attention")},
          {"versions", summary.at("versions")}};
}

// Those that the median leaves out.
constexpr std::size_t warm_steps = ComputeTimes::warm_up;

// The median over steps; null without one that has the figure.
template <typename Figure>
Json median_of_steps(std::span<const StepMetrics> steps, Figure figure) {
  std::vector<double> values;
  for (const StepMetrics& step : steps) {
    if (const std::optional<double> value = figure(step)) values.push_back(*value);
  }
  return values.empty() ? Json() : Json(median_of(std::move(values)));
}

Json step_figures(std::span<const StepMetrics> steps) {
  return {{"steps", steps.size()},
          {"milliseconds",
           median_of_steps(steps, [](const StepMetrics& step) { return std::optional(1e3 * step.seconds); })},
          {"tokens_per_second",
           median_of_steps(steps, [](const StepMetrics& step) { return std::optional(step.tokens_per_second()); })},
          {"mfu", median_of_steps(steps, [](const StepMetrics& step) { return step.mfu(); })}};
}

Json ranks_json(const RunOutputs& run, const Json& summary) {
  return json_list(run.memory, [&](const RankMemory& memory) {
    const Json& rank = summary.at("ranks").at(static_cast<std::size_t>(memory.rank));
    return Json{{"rank", memory.rank},
                {"planned_bytes", memory.predicted.total()},
                {"peak_bytes", memory.measured.total()},
                {"host_memory_bytes", rank.value("host_memory_bytes", Json())},
                {"compute_seconds", rank.value("compute_seconds", Json())},
                {"over_peers", rank.value("over_peers", Json())},
                {"slow", rank.value("slow", Json())}};
  });
}

Json receipt_of(const RunOutputs& run) {
  const Json summary = summary_of(run);
  const std::span<const StepMetrics> steps = last_part(run, summary);
  const ResolvedRun resolved(run.config);
  return {{"run", run.directory.string()},
          {"command_line", summary.at("command_line")},
          {"model", model_json(run.config)},
          {"schedule", schedule_json(resolved.config())},
          {"layout", placement_json(resolved)},
          {"sharding", sharding_json(resolved.config())},
          {"hashes", summary.at("hashes")},
          {"device", device_json(run.config, summary)},
          {"ranks", ranks_json(run, summary)},
          {"first_step", step_figures(steps.first(1))},
          {"median_step", step_figures(steps.subspan(std::min(warm_steps, steps.size())))},
          {"time", summary.at("time")},
          {"goodput", summary.at("goodput")}};
}

std::string joined(const Json& object) {
  std::vector<std::string> words;
  for (const auto& [name, value] : object.items()) {
    words.push_back(fmt::format("{} {}", name, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

// Versions have a line each.
std::string in_one_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) text.replace(at, 1, ", ");
  return text;
}

std::string losses_text(const Json& losses) {
  std::vector<std::string> words;
  for (const Json& loss : losses) {
    words.push_back(fmt::format("{} {}", loss.at("name").get<std::string>(), loss.at("coefficient").get<double>()));
  }
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, "; "));
}

std::string figures_text(const Json& figures) {
  if (figures.at("milliseconds").is_null()) return fmt::format("none: the run took {} steps or fewer", warm_steps);
  std::string text = fmt::format("{:.4g} ms, {:.0f} tokens/s", figures.at("milliseconds").get<double>(),
                                 figures.at("tokens_per_second").get<double>());
  if (!figures.at("mfu").is_null()) text += fmt::format(", {:.1f} % MFU", 100.0 * figures.at("mfu").get<double>());
  return text;
}

std::string time_text(const Json& receipt) {
  std::vector<std::string> words;
  for (const auto& [part, seconds] : receipt.at("time").items()) {
    words.push_back(fmt::format("{} {:.3f} s", part, seconds.get<double>()));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

// Of ranks with others that do the same work.
std::string spread_text(const Json& ranks) {
  std::vector<std::string> slow;
  const Json* most = nullptr;
  for (const Json& rank : ranks) {
    if (rank.at("over_peers").is_null()) {
      return "not measured: too few steps, or no two ranks do the same work without waiting for each other in it";
    }
    if (most == nullptr || rank.at("over_peers") > most->at("over_peers")) most = &rank;
    if (rank.at("slow").get<bool>()) slow.push_back(rank.at("rank").dump());
  }
  const double more = 100.0 * (most->at("over_peers").get<double>() - 1.0);
  return fmt::format("rank {} computes {:.1f} % longer than the others of its stage; slow ranks: {}",
                     most->at("rank").get<int>(), more,
                     slow.empty() ? "none" : fmt::format("{}", fmt::join(slow, ", ")));
}

std::string receipt_text(const Json& receipt) {
  const Json& model = receipt.at("model");
  std::string text = fmt::format("{}\n", receipt.at("run").get<std::string>());
  const auto line = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<17}{}\n", name, value);
  };
  line("command", receipt.at("command_line").get<std::string>());
  line("model", fmt::format("{}: {} parameters, {} active per token", model.at("layers").get<std::string>(),
                            grouped_digits(model.at("parameters").get<std::int64_t>()),
                            grouped_digits(model.at("active_parameters").get<std::int64_t>())));
  line("auxiliary losses", losses_text(model.at("auxiliary_losses")));
  if (model.at("forced_balance").get<bool>()) line("experts", std::string(forced_balance_text));
  line("schedule", joined(receipt.at("schedule")));
  line("layout", joined(receipt.at("layout")));
  for (const auto& [family, policy] : receipt.at("sharding").items()) line("sharding", family + ": " + joined(policy));
  for (const auto& [name, hash] : receipt.at("hashes").items())
    line("hash", fmt::format("{} {}", hash.get<std::string>(), name));
  for (const auto& [name, value] : receipt.at("device").items()) {
    if (value.is_string()) line(name.c_str(), in_one_line(value.get<std::string>()));
  }
  line("first step", figures_text(receipt.at("first_step")));
  line("median step", figures_text(receipt.at("median_step")));
  line("time", time_text(receipt));
  line("goodput", fmt::format("{:.1f} %", 100.0 * receipt.at("goodput").get<double>()));
  line("spread", spread_text(receipt.at("ranks")));
  BenchTable table{{"  rank", "planned bytes", "peak bytes"}};
  const bool host = std::ranges::any_of(receipt.at("ranks"), [](const Json& rank) {
    const Json& bytes = rank.at("host_memory_bytes");
    return !bytes.is_null() && bytes.at("predicted") > 0;
  });
  if (host) table.header.insert(table.header.end(), {"planned host bytes", "peak host bytes"});
  for (const Json& rank : receipt.at("ranks")) {
    auto& row = table.add("  " + rank.at("rank").dump(), rank.at("planned_bytes").dump(), rank.at("peak_bytes").dump());
    if (!host) continue;
    const Json& bytes = rank.at("host_memory_bytes");
    row.insert(row.end(), {bytes.at("predicted").dump(), bytes.at("measured").dump()});
  }
  return text + aligned_text(table);
}

struct ReceiptRequest {
  std::string run;
  bool json = false;
};

// A value of a wrong type can only come from the summary. The text reads every value of a receipt by its type, so it is
// written for --json too.
void print_receipt(const ReceiptRequest& request) {
  const RunOutputs run = read_run(request.run);
  try {
    const Json receipt = receipt_of(run);
    const std::string text = receipt_text(receipt);
    fmt::print("{}", request.json ? receipt.dump() + "\n" : text);
  } catch (const Json::exception& error) {
    fail_request("weft receipt: error: {} is no summary of a run: {}", (run.directory / summary_file).string(),
                 error.what());
  }
}

}  // namespace

void add_receipt_command(CLI::App& program) {
  const auto [command, request] = add_command<ReceiptRequest>(
      program, "receipt", "what a run was and what it took: model, layout, hashes, memory, steady steps",
      print_receipt);
  command.add_option("RUN", request.run, "the run.directory of a run that has ended")->required();
  command.add_flag("--json", request.json, "print one JSON document");
}

}  // namespace weft
