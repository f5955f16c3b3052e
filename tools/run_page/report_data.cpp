#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tools/report/report_parts.h"
#include "tools/run_page/config_differences.h"
#include "tools/run_page/kept_points.h"
#include "tools/run_page/report_columns.h"
#include "tools/run_page/run_page.h"

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
  return Json::array(
      {Json::array({"directory", run.directory.string()}), Json::array({"state", state_text(run)}),
       Json::array({"blocks", config.layers_text}),
       Json::array({"model", fmt::format("hidden {}, vocabulary {}", model.hidden_size, model.vocab_size)}),
       Json::array({"ranks", degrees}),
       Json::array({"batch", fmt::format("{} sequences of {} tokens", config.training.global_batch_size,
                                         config.training.sequence_length)})});
}

Json times_json(const RankTimes& times) {
  return {{"compute", times.compute},
          {"gathers", times.gathers},
          {"reductions", times.reductions},
          {"update", times.update},
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
      {"differences", Json::array()}};
  int variant = 0;
  std::vector<Config> configs;
  for (const ReportedRun& run : runs) {
    json["runs"].push_back(run_json(run, variant));
    variant += run.lanes ? 1 : 0;
    configs.push_back(run.config);
  }
  for (const ConfigDifference& difference : config_differences(configs)) {
    json["differences"].push_back({{"key", difference.key}, {"help", difference.help}, {"values", difference.values}});
  }
  return json;
}

}  // namespace weft
