#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "tools/report/report_parts.h"
#include "tools/run_page/kept_points.h"
#include "tools/run_page/report_columns.h"
#include "tools/run_page/run_page.h"
#include "trainer/config/config.h"
#include "trainer/config/config_schema.h"

namespace weft {
namespace {

// "stopped" cannot be told from "running" by files that both leave.
std::string state_text(const ReportedRun& run) {
  const std::int64_t last = run.table.steps.back(), all = run.config.run.steps;
  std::string text = last >= all ? fmt::format("complete: {} steps", last)
                                 : fmt::format("at step {} of {}: it runs, or has stopped", last, all);
  if (run.table.cut_off) text += "; the last line of metrics.jsonl is cut off and left out";
  return text;
}

Json facts_json(const ReportedRun& run) {
  const Config& config = run.config;
  const ModelConfig& model = config.model;
  std::string degrees = fmt::format("{}", config.parallelism.world());
  const std::pair<const char*, int> axes[] = {
      {"pipeline", config.parallelism.pipeline},     {"tensor", config.parallelism.tensor},
      {"context", config.parallelism.context},       {"data_replicate", config.parallelism.data_replicate},
      {"data_shard", config.parallelism.data_shard}, {"expert", config.parallelism.expert}};
  const char* before = ": ";
  for (const auto& [axis, degree] : axes) {
    if (degree == 1) continue;
    degrees += fmt::format("{}{} {}", before, axis, degree);
    before = ", ";
  }
  if (const std::size_t row = run.table.first_own_row; row > 0) {
    degrees += fmt::format("; since step {}, and peak, medians and plan are of this part", run.table.steps[row]);
  }
  Json facts =
      Json::array({Json::array({"directory", run.directory.string()}), Json::array({"state", state_text(run)}),
                   Json::array({"blocks", config.layers_text}),
                   Json::array({"model", fmt::format("hidden {}, vocabulary {}", model.hidden_size, model.vocab_size)}),
                   Json::array({"ranks", degrees}),
                   Json::array({"batch", fmt::format("{} sequences of {} tokens", config.training.global_batch_size,
                                                     config.training.sequence_length)})});
  if (forces_balance(model)) facts.push_back(Json::array({"experts", forced_balance_text}));
  return facts;
}

Json times_json(const RankTimes& times) {
  return {{"compute", times.compute}, {"gathers", times.gathers}, {"reductions", times.reductions},
          {"rows", times.rows},       {"host", times.host},       {"update", times.update},
          {"bubble", times.bubble}};
}

Json lanes_json(const StepLanes& lanes, int variant) {
  Json json = {{"variant", variant},
               {"costs", lanes.costs},
               {"planned_seconds", lanes.planned.seconds},
               {"measured", nullptr},
               {"ranks", Json::array()}};
  if (lanes.measured) {
    json["measured"] = lanes.measured->step;
    json["recorded"] = lanes.measured->recorded;
    json["measured_seconds"] = lanes.measured->picture.seconds;
  }
  for (std::size_t rank = 0; rank < lanes.planned.ranks.size(); ++rank) {
    const bool traced = lanes.measured && std::ranges::count(lanes.measured->traced, static_cast<int>(rank)) > 0;
    json["ranks"].push_back({{"rank", rank},
                             {"planned", times_json(lanes.planned.ranks[rank].times)},
                             {"measured", traced ? times_json(lanes.measured->picture.ranks[rank].times) : Json()}});
  }
  return json;
}

Json samples_json(const std::vector<CheckpointSamples>& samples) {
  Json json = Json::array();
  for (const CheckpointSamples& of_step : samples) json.push_back({{"step", of_step.step}, {"texts", of_step.texts}});
  return json;
}

Json run_json(const ReportedRun& run, int variant) {
  return {{"name", run.name},
          {"directory", run.directory.string()},
          {"facts", facts_json(run)},
          {"config", run.config_text},
          {"state", state_text(run)},
          {"figures", figures_json(run)},
          {"curves", curves_json(run.table)},
          {"spikes", axes_json(run.table, run.table.spikes)},
          {"memory", memory_json(run)},
          {"experts", experts_json(run.table)},
          {"lanes", run.lanes ? lanes_json(*run.lanes, variant) : Json()},
          {"unplanned", run.unplanned},
          {"unmeasured", run.lanes ? run.lanes->unmeasured : ""},
          {"samples", samples_json(run.samples)}};
}

// As TOML; "not read" for a run without use for the key.
std::string value_in(const ConfigKey& key, const Config& config) {
  const bool read = std::ranges::all_of(key.read_where, [&](const KeyCondition& where) { return where.holds(config); });
  return read ? key.write(config) : "not read";
}

// The keys with different values, in their order. A run's name and directories always differ and are left out. So is a
// key that follows another one in every run, which stands in the list itself.
Json differences_json(std::span<const ReportedRun> runs) {
  constexpr std::array own_names = {"run.name", "run.directory", "checkpoint.directory"};
  const std::vector<ConfigKey> schema = config_schema();
  std::map<std::string, std::vector<std::string>> values;  // by path, then by run
  for (const ConfigKey& key : schema) {
    for (const ReportedRun& run : runs) values[key.path()].push_back(value_in(key, run.config));
  }
  Json differences = Json::array();
  for (const ConfigKey& key : schema) {
    const std::string path = key.path();
    const std::vector<std::string>& of_key = values[path];
    const bool equal = std::ranges::adjacent_find(of_key, std::not_equal_to()) == of_key.end();
    const auto base = values.find(key.inherits);
    const bool follows = base != values.end() && base->second == of_key;
    if (equal || follows || std::ranges::count(own_names, path) > 0) continue;
    differences.push_back({{"key", path}, {"help", key.help}, {"values", of_key}});
  }
  return differences;
}

}  // namespace

nlohmann::ordered_json report_data(std::span<const ReportedRun> runs, std::string_view version,
                                   std::string_view prompt) {
  std::vector<std::string> names;
  for (const ReportedRun& run : runs) names.push_back(run.name);
  Json json = {
      {"title", names.size() <= 4 ? fmt::format("{}", fmt::join(names, ", ")) : fmt::format("{} runs", names.size())},
      {"version", version},
      {"prompt", prompt},
      {"most_points", most_points},
      {"runs", Json::array()},
      {"differences", differences_json(runs)}};
  int variant = 0;
  for (const ReportedRun& run : runs) {
    json["runs"].push_back(run_json(run, variant));
    variant += run.lanes ? 1 : 0;
  }
  return json;
}

}  // namespace weft
