#include "tools/run_page/reported_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/runtime/medians.h"
#include "tools/picture/picture_formats.h"
#include "tools/picture/picture_style.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_schema.h"

namespace weft {
namespace {

// A number with six digits, for drawing: a page has a thousand pixels.
double drawn_number(double value) {
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

// The index of the finite value that `holds` against every other, the first of several; 0 if none is finite. The column
// is not empty.
template <typename Holds>
std::size_t extreme_of(const StepColumn& column, Holds holds) {
  const auto yields = [&](double one, double other) { return std::isfinite(other) && !holds(one, other); };
  return static_cast<std::size_t>(std::ranges::max_element(column.values, yields) - column.values.begin());
}

// {"step", "tokens", "seconds"}: the places of rows on each axis that a page offers.
Json axes_json(const StepTable& table, const std::vector<std::size_t>& rows) {
  Json json = {{"step", Json::array()}, {"tokens", Json::array()}, {"seconds", Json::array()}};
  for (const std::size_t row : rows) {
    json["step"].push_back(table.steps[row]);
    json["tokens"].push_back(std::llround(table.tokens[row]));
    json["seconds"].push_back(drawn_number(table.seconds[row]));
  }
  return json;
}

// The fields that are drawn as curves, where a run has them.
constexpr const char* curve_fields[] = {"loss", "validation.loss", "tokens_per_second", "tflops",
                                        "mfu",  "data_seconds",    "grad_norm",         "lr"};

Json curve_json(const StepTable& table, const StepColumn& column) {
  std::vector<std::size_t> rows;
  Json values = Json::array();
  for (const std::size_t index : kept_points(column.values)) {
    rows.push_back(column.rows[index]);
    values.push_back(drawn_number(column.values[index]));
  }
  Json json = axes_json(table, rows);
  json["value"] = std::move(values);
  return json;
}

// {field: {"step", "tokens", "seconds", "value"}}, of the fields that the run has.
Json curves_json(const StepTable& table) {
  Json curves = Json::object();
  for (const char* field : curve_fields) {
    if (const StepColumn* column = table.find(field)) curves[field] = curve_json(table, *column);
  }
  for (const auto& [field, column] : table.columns) {
    if (field.starts_with(predictor_column)) curves[field] = curve_json(table, column);
  }
  return curves;
}

void add_loss_figures(Json& figures, const StepTable& table, const char* field, const std::string& name) {
  const StepColumn* column = table.find(field);
  const std::size_t least = column ? extreme_of(*column, std::less_equal()) : 0;
  const bool any = column && std::isfinite(column->values[least]);
  figures[name + "_last"] = column ? Json(column->values.back()) : Json();
  figures[name + "_least"] = any ? Json(column->values[least]) : Json();
  figures[name + "_least_step"] = any ? Json(table.steps[column->rows[least]]) : Json();
}

Json median_json(const StepColumn& column) {
  std::vector<double> finite;
  std::ranges::copy_if(column.values, std::back_inserter(finite), [](double value) { return std::isfinite(value); });
  return finite.empty() ? Json() : Json(median_of(std::move(finite)));
}

// Last, least and median values, with all their digits; null where the run has none.
Json figures_json(const ReportedRun& run) {
  const StepTable& table = run.table;
  Json figures = {{"step", table.steps.back()},
                  {"steps", run.config.run.steps},
                  {"tokens", std::llround(table.tokens.back())},
                  {"seconds", table.seconds.back()},
                  {"loss_first", table.find("loss") ? Json(table.find("loss")->values.front()) : Json()}};
  add_loss_figures(figures, table, "loss", "loss");
  add_loss_figures(figures, table, "validation.loss", "validation");
  for (const char* field : {"tokens_per_second", "tflops", "mfu", "data_seconds", "grad_norm"}) {
    figures[field] = median_json(table.own(field));
  }
  const StepColumn* rates = table.find("lr");
  const StepColumn peaks = table.own("peak_bytes");
  figures["lr_last"] = rates ? Json(rates->values.back()) : Json();
  figures["peak_bytes"] = peaks.rows.empty() ? Json() : Json(peaks.values[extreme_of(peaks, std::greater_equal())]);
  figures["spikes"] = table.spikes.size();
  return figures;
}

// A memory curve has a value a bucket, so it has fewer points than another.
constexpr std::size_t most_memory_points = 500;

// Bytes of every bucket in a row of the table.
BucketBytes buckets_in(const StepTable& table, std::size_t row) {
  BucketBytes bytes;
  for (const Bucket bucket : all_values<Bucket>) {
    const StepColumn* column = table.find(fmt::format("memory.{}", name_of(bucket)));
    if (!column) continue;
    const auto at = std::ranges::lower_bound(column->rows, row);
    if (at == column->rows.end() || *at != row) continue;
    const double value = column->values[static_cast<std::size_t>(at - column->rows.begin())];
    if (std::isfinite(value)) bytes[bucket] = std::llround(value);
  }
  return bytes;
}

// The metrics do not name the rank of their bytes. Bytes that live all run are known exactly. So the planned rank with
// the nearest ones is the rank, or has as many; of several, the fullest.
const BucketBytes* plan_of_rank(const std::vector<BucketBytes>& peaks, const BucketBytes& measured) {
  const auto order = [&](const BucketBytes& peak) {
    std::int64_t apart = 0;
    for (const Bucket bucket : all_values<Bucket>) {
      if (is_static(bucket)) apart += std::abs(peak[bucket] - measured[bucket]);
    }
    return std::pair(apart, -peak.total());
  };
  return peaks.empty() ? nullptr : &*std::ranges::min_element(peaks, {}, order);
}

// Bytes by bucket over the steps, and beside the plan at the highest peak. Null without peaks.
Json memory_json(const ReportedRun& run) {
  const StepColumn* peaks = run.table.find("peak_bytes");
  if (!peaks) return nullptr;
  const StepColumn own = run.table.own("peak_bytes");
  if (own.rows.empty()) return nullptr;
  const std::size_t highest = own.rows[extreme_of(own, std::greater_equal())];
  const BucketBytes measured = buckets_in(run.table, highest);
  const BucketBytes* planned = run.lanes ? plan_of_rank(run.lanes->peaks, measured) : nullptr;
  std::vector<std::size_t> rows;
  for (const std::size_t index : kept_points(peaks->values, most_memory_points)) rows.push_back(peaks->rows[index]);
  Json json = axes_json(run.table, rows);
  json["buckets"] = Json::array();
  for (const Bucket bucket : all_values<Bucket>) {
    const StepColumn* column = run.table.find(fmt::format("memory.{}", name_of(bucket)));
    Json bytes = Json::array();
    for (std::size_t i = 0, at = 0; column && i < rows.size(); ++i) {
      while (at < column->rows.size() && column->rows[at] < rows[i]) ++at;
      const bool there = at < column->rows.size() && column->rows[at] == rows[i];
      bytes.push_back(there ? Json(column->values[at]) : Json());
    }
    // A bucket that holds nothing at either peak can still be drawn: it may at another one.
    const bool used = column && std::ranges::any_of(column->values, [](double value) { return value > 0.0; });
    if (!used && (!planned || (*planned)[bucket] == 0)) continue;
    json["buckets"].push_back({{"name", bucket_words(bucket)},
                               {"bytes", std::move(bytes)},
                               {"measured", measured[bucket]},
                               {"planned", planned ? Json((*planned)[bucket]) : Json()}});
  }
  json["highest_step"] = run.table.steps[highest];
  json["planned"] = planned ? Json(planned->total()) : Json();
  return json;
}

// Columns of an expert map.
constexpr std::size_t most_expert_stretches = 240;

// The most uneven value of each stretch: the largest of "max_over_mean", the least of "entropy".
Json stretches_json(const StepColumn& column, const std::vector<PointRange>& stretches, bool largest) {
  Json row = Json::array();
  std::size_t at = 0;
  for (const PointRange& stretch : stretches) {
    std::optional<double> worst;
    for (; at < column.rows.size() && column.rows[at] < stretch.end; ++at) {
      const double value = column.values[at];
      if (column.rows[at] < stretch.begin || !std::isfinite(value)) continue;
      worst = !worst ? value : largest ? std::max(*worst, value) : std::min(*worst, value);
    }
    row.push_back(worst ? Json(drawn_number(*worst)) : Json());
  }
  return row;
}

// The most uneven step of each stretch, by block. Null without expert blocks.
Json experts_json(const StepTable& table) {
  std::set<int> blocks;
  for (const auto& [field, column] : table.columns) {
    if (field.starts_with("moe.")) blocks.insert(std::atoi(field.c_str() + 4));
  }
  if (blocks.empty()) return nullptr;
  const std::vector<PointRange> stretches = equal_stretches(table.steps.size(), most_expert_stretches);
  // A stretch lasts from the end of the step before it to the end of its last step.
  std::vector<std::size_t> ends;
  for (const PointRange& stretch : stretches) ends.push_back(stretch.end - 1);
  Json json = axes_json(table, ends);
  json["step"].insert(json["step"].begin(), table.steps.front() - 1);
  for (const char* axis : {"tokens", "seconds"}) json[axis].insert(json[axis].begin(), 0);
  json["blocks"] = blocks;
  json["fields"] = Json::object();
  for (const char* field : {"max_over_mean", "entropy"}) {
    Json rows = Json::array(), last = Json::array();
    bool any = false;
    for (const int block : blocks) {
      const StepColumn* column = table.find(fmt::format("moe.{}.{}", block, field));
      any = any || column != nullptr;
      rows.push_back(column ? stretches_json(*column, stretches, std::string_view(field) == "max_over_mean")
                            : Json::array());
      last.push_back(column ? Json(column->values.back()) : Json());
    }
    if (any) json["fields"][field] = {{"rows", std::move(rows)}, {"last", std::move(last)}};
  }
  return json;
}

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
    degrees += fmt::format("; this configuration since step {}, and peak, medians and plan are of this part",
                           run.table.steps[row]);
  }
  std::vector<std::pair<std::string, std::string>> facts = {
      {"directory", run.directory.string()},
      {"state", state_text(run)},
      {"blocks", config.layers_text},
      {"model", fmt::format("hidden {}, vocabulary {}", model.hidden_size, model.vocab_size)},
      {"ranks", degrees},
      {"batch",
       fmt::format("{} sequences of {} tokens", config.training.global_batch_size, config.training.sequence_length)}};
  if (forces_balance(model)) facts.emplace_back("experts", forced_balance_text);
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
  return json_list(samples, [](const CheckpointSamples& of_step) {
    return Json{{"step", of_step.step}, {"texts", of_step.texts}};
  });
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

// The keys with different values, in their order. A run's name and directories always differ and are left out. So is a
// key that follows another one in every run, which stands in the list itself.
Json differences_json(std::span<const ReportedRun> runs) {
  constexpr std::array own_names = {"run.name", "run.directory", "checkpoint.directory"};
  const std::vector<ConfigKey> schema = config_schema();
  std::map<std::string, std::vector<std::string>> values;  // by path, then by run; as TOML
  for (const ConfigKey& key : schema) {
    for (const ReportedRun& run : runs) {
      values[key.path()].push_back(missing_for(key, run.config) ? "not read" : key.write(run.config));
    }
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

// The contents of the page besides pictures, for the scripts in page/. Numbers that are not finite are null. Curves
// hold the points that kept_points keeps, with six digits.
//   {"title", "version", "prompt", "most_points",
//    "runs": [{"name", "directory", "facts": [[name, text]], "config", "state",
//              "figures": {"step", "steps", "tokens", "seconds", "loss_first", "loss_last", "loss_least",
//                          "loss_least_step", "validation_last", "validation_least", "validation_least_step",
//                          "tokens_per_second", "tflops", "mfu", "data_seconds", "grad_norm", "lr_last", "peak_bytes",
//                          "spikes"},
//              "curves": {field: {"step", "tokens", "seconds", "value"}}, "spikes": {"step", "tokens", "seconds"},
//              "memory": {"step", "tokens", "seconds", "highest_step",
//                         "buckets": [{"name", "bytes", "measured", "planned"}], "planned"},
//              "experts": {"step", "tokens", "seconds", "blocks": [block],
//                          "fields": {field: {"rows": [[value]], "last": [value]}}},
//              "lanes": {"variant", "costs", "measured", "recorded", "planned_seconds", "measured_seconds", "ranks"},
//              "unplanned", "unmeasured", "samples": [{"step", "texts"}]}],
//    "differences": [{"key", "help", "values"}]}
// "memory", "experts" and "lanes" are null where the run has none. The edges of a stretch of steps of "experts" are
// consecutive entries of its "step", "tokens" and "seconds".
Json report_data(std::span<const ReportedRun> runs, std::string_view version, std::string_view prompt) {
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

}  // namespace

std::string run_page(std::span<const ReportedRun> runs, std::string_view version, std::string_view prompt) {
  std::vector<Picture> steps;
  for (const ReportedRun& run : runs) {
    if (!run.lanes) continue;
    steps.push_back(paired(*run.lanes));
    steps.back().title = run.name;
  }
  const Json data = report_data(runs, version, prompt);
  const std::string title = data["title"].get<std::string>();
  return filled_page(std::string(run_page_template()), {{"WEFT_REPORT", text_in_script(data)},
                                                        {"WEFT_DATA", picture_data(steps, title)},
                                                        {"WEFT_TITLE", escaped_markup(title)}});
}

}  // namespace weft
