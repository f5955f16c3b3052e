#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/picture/picture_formats.h"
#include "tools/report/given_costs.h"
#include "tools/report/report_parts.h"
#include "trainer/config/config.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/published.h"
#include "trainer/planning/step_forecast.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

struct SimulatedVariant {
  std::string title;  // the words that describe the variant
  Config config;
  StepForecast forecast;
  std::string grid;   // time_grid(), if the step is small
  std::string costs;  // the source of the costs, in words
  bool unit_time = false;
  Certainty certainty = {};
};

// Limits for the shown parts of the critical path and the shown waits.
constexpr std::size_t shown_shares = 4, shown_waits = 3;
constexpr double least_share = 0.005;

std::string percent(double part, double whole) {
  return fmt::format("{:.1f} %", whole > 0.0 ? 100.0 * part / whole : 0.0);
}

std::string longest(const std::vector<StepPart>& parts, double whole, std::size_t most) {
  std::vector<std::string> texts;
  for (const StepPart& part : parts) {
    if (texts.size() == most || part.seconds < least_share * whole) break;
    texts.push_back(fmt::format("{} {}", part.what, percent(part.seconds, whole)));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, "; "));
}

std::string buckets(const BucketBytes& bytes) {
  std::vector<std::string> parts;
  for (const Bucket bucket : all_values<Bucket>) {
    if (bytes[bucket] > 0) parts.push_back(fmt::format("{} {}", name_of(bucket), format_bytes(bytes[bucket])));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// "1f1b, 4 x 2 stages": schedule, ranks and chunks.
std::string schedule_text(const Config& config) {
  const int chunks = config.pipeline.chunks;
  return fmt::format("{}, {} ranks{}", config.pipeline.schedule, config.parallelism.pipeline,
                     chunks > 1 ? fmt::format(" x {} chunks", chunks) : "");
}

// The report of one variant.
std::string report(const SimulatedVariant& variant) {
  const StepForecast& forecast = variant.forecast;
  const auto time = [&](double seconds) { return format_time(seconds, variant.unit_time); };
  std::string text = fmt::format("{}\n", variant.title);
  text += fmt::format("  layout      {} ({}, {} microbatches)\n", forecast.layout, schedule_text(variant.config),
                      variant.config.microbatches());
  text += fmt::format("  costs       {}\n", variant.costs);
  text += fmt::format("  certainty   {}\n", variant.certainty.text);
  text += fmt::format("  step        {}{}, bubble {}\n", time(forecast.seconds), variant.unit_time ? " units" : "",
                      percent(forecast.bubble, 1.0));
  const auto where_any = [&](std::string_view what, double seconds) {
    return seconds > 0.0 ? fmt::format(", {} {}", what, time(seconds)) : std::string();
  };
  text += fmt::format("  exposed     gathers {}, reductions {}{}{}, on the rank with most\n",
                      time(forecast.waits.gathers), time(forecast.waits.reductions),
                      where_any("rows of experts", forecast.waits.rows), where_any("host copies", forecast.waits.host));
  text += fmt::format("  memory      {} on rank {}, the fullest: {}\n", format_bytes(forecast.peak.total()),
                      forecast.fullest_rank, buckets(forecast.peak));
  if (forecast.worst_peak_bytes) {
    text += fmt::format("              tokens routed evenly; {} whatever is routed where\n",
                        format_bytes(*forecast.worst_peak_bytes));
  }
  text += fmt::format("  traffic     {} gathers of {} in all, {} reductions, over the ranks of one pipeline\n",
                      forecast.gathers, format_bytes(forecast.gathered_bytes), forecast.reductions);
  text += fmt::format("  critical    {}\n", longest(forecast.path, forecast.seconds, shown_shares));
  text += fmt::format("  waits       {}\n", longest(forecast.longest_waits, forecast.seconds, shown_waits));
  if (variant.grid.empty()) return text;
  return text + "\n" + variant.grid;
}

// Ranks of variants; all of them have costs of one kind.
std::vector<int> ranks_of(std::span<const SimulatedVariant> variants) {
  const auto least_sure =
      std::ranges::max_element(variants, {}, [](const SimulatedVariant& variant) { return variant.certainty.apart; });
  return ranks_with_ties(variants, least_sure->certainty,
                         [](const SimulatedVariant& variant) { return variant.forecast.seconds; });
}

BenchTable comparison(std::span<const SimulatedVariant> variants) {
  const std::vector<int> ranks = ranks_of(variants);
  BenchTable table{{"variant", "schedule", "layout", "step", "rank", "of the first", "bubble", "fullest rank",
                    "gathers", "reductions"}};
  std::vector<StepWaits> waits;
  for (const SimulatedVariant& variant : variants) {
    const StepForecast& forecast = variant.forecast;
    const bool alike = variant.unit_time == variants.front().unit_time;
    table.add(table.rows.size() + 1, schedule_text(variant.config), forecast.layout,
              format_time(forecast.seconds, variant.unit_time), rank_text(ranks, table.rows.size()),
              alike ? percent(forecast.seconds, variants.front().forecast.seconds) : "-", percent(forecast.bubble, 1.0),
              format_bytes(forecast.peak.total()), forecast.gathers, forecast.reductions);
    waits.push_back(forecast.waits);
  }
  insert_wait_columns(table, 7, waits, variants.front().unit_time);
  return table;
}

Json shares_json(const std::vector<StepPart>& parts) {
  return json_list(parts, [](const StepPart& part) { return Json{{"what", part.what}, {"seconds", part.seconds}}; });
}

Json variant_json(const SimulatedVariant& variant) {
  const StepForecast& forecast = variant.forecast;
  Json ranks = Json::array();
  for (std::size_t rank = 0; rank < forecast.times.size(); ++rank) {
    const RankTimes& times = forecast.times[rank];
    ranks.push_back({{"rank", rank},
                     {"compute", times.compute},
                     {"bubble", times.bubble},
                     {"gathers", times.gathers},
                     {"reductions", times.reductions},
                     {"rows", times.rows},
                     {"host", times.host},
                     {"update", times.update}});
  }
  Json json = {{"title", variant.title},
               {"costs", variant.costs},
               {"certainty", variant.certainty.text},
               {"tie_factor", variant.certainty.apart},
               {"unit_time", variant.unit_time},
               {"schedule", variant.config.pipeline.schedule},
               {"chunks", variant.config.pipeline.chunks},
               {"microbatches", variant.config.microbatches()},
               {"layout", forecast.layout},
               {"seconds", forecast.seconds},
               {"bubble", forecast.bubble}};
  add_waits(json, forecast.waits);
  json.update({{"peak_bytes", forecast.peak.total()},
               {"worst_peak_bytes", or_null(forecast.worst_peak_bytes)},
               {"fullest_rank", forecast.fullest_rank},
               {"peak", buckets_json(forecast.peak)},
               {"gathers", forecast.gathers},
               {"gathered_bytes", forecast.gathered_bytes},
               {"reductions", forecast.reductions},
               {"critical_path", shares_json(forecast.path)},
               {"waits", shares_json(forecast.longest_waits)},
               {"ranks", std::move(ranks)}});
  return json;
}

// Each variant, then a comparison if there are several.
std::string forecast_report(std::span<const SimulatedVariant> variants) {
  std::string text;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    text += fmt::format("{}{}{}", v == 0 ? "" : "\n", variants.size() > 1 ? fmt::format("{}. ", v + 1) : "",
                        report(variants[v]));
  }
  const bool drawn = std::any_of(variants.begin(), variants.end(), [](const auto& v) { return !v.grid.empty(); });
  if (drawn) {
    text +=
        "\nto scale, time to the right: (microbatch) forward, [microbatch] backward or input gradient, <microbatch> "
        "weight gradient\n";
  }
  if (variants.size() > 1) text += "\n" + aligned_text(comparison(variants));
  return text;
}

// {"variants": [...]}, one JSON document; times are seconds, or units if "unit_time" is true.
std::string forecast_json(std::span<const SimulatedVariant> variants) {
  Json all = Json::array();
  const std::vector<int> ranks = ranks_of(variants);
  for (std::size_t v = 0; v < variants.size(); ++v) {
    Json variant = variant_json(variants[v]);
    variant["rank"] = ranks[v];
    all.push_back(std::move(variant));
  }
  return Json{{"variants", std::move(all)}}.dump() + "\n";
}

constexpr const char* simulate_command = "weft layout simulate";

struct SimulateRequest {
  std::string file, format = "text", output, costs, hardware;
  std::vector<std::string> layouts, variants;
  bool json = false, stages_only = false, compute_only = false;

  // Detail of pictures.
  Detail detail() const {
    return compute_only ? Detail::compute_only : stages_only ? Detail::stages_only : Detail::everything;
  }
};

// First the given configuration, then one variant per layout, then the variants. Each is a list of words added to the
// common ones.
std::vector<Overrides> variants_of(const SimulateRequest& request) {
  std::vector<Overrides> variants(1);
  for (const std::string& layout : request.layouts) variants.push_back({"--pipeline.layout=" + layout});
  for (const std::string& variant : request.variants) variants.push_back(words_of(variant));
  return variants;
}

void simulate_layouts(const CLI::App& command, const SimulateRequest& request) {
  const std::string format = request.json ? "json" : request.format;
  const bool draws = is_picture_format(format);
  if (!draws && format != "text" && format != "json") {
    fail_request("{}: error: --format takes text, json, svg, html and trace, not {}", simulate_command, format);
  }
  const CostSource source(simulate_command, request.costs, request.hardware);
  std::vector<SimulatedVariant> variants;
  std::vector<Picture> pictures;
  for (const Overrides& words : variants_of(request)) {
    // The hardware's memory decides the keys that the configuration leaves open.
    Overrides given = words;
    if (!request.hardware.empty()) given.push_back("--hardware.name=" + request.hardware);
    const Config written = read_config_given_to(command, request.file, given).config;
    if (variants.empty() && pictures.empty()) warn_of_planned_card(written);
    const ResolvedRun run(on_hardware(written));
    const Config& config = run.config();
    Program program = step_program(run, run.mesh().coordinates(0));
    const StepCosts costs = source.costs_of(config, run.mesh(), program);
    const ForecastStep simulated = simulate_run(run, std::move(program), costs.costs, costs.channels);
    Overrides all = overrides_given_to(command);
    all.insert(all.end(), words.begin(), words.end());
    PictureOptions options{.title = request.file + (all.empty() ? "" : " " + shell_text(all)),
                           .unit_time = costs.unit_time,
                           .detail = draws ? request.detail() : Detail::stages_only};
    if (draws) {
      pictures.push_back(picture_of(simulated.program, simulated.step, options));
      continue;
    }
    SimulatedVariant variant{options.title,       config,          forecast_of(run, simulated), "",
                             source.text(config), costs.unit_time, source.certainty(config)};
    if (format == "text") variant.grid = time_grid(simulated.program, simulated.step, options);
    variants.push_back(std::move(variant));
  }
  write_result(simulate_command,
               draws              ? render_pictures(simulate_command, pictures, format)
               : format == "json" ? forecast_json(variants)
                                  : forecast_report(variants),
               request.output);
}

}  // namespace

void add_layout_simulate_command(CLI::App& layout) {
  const auto [command, request] = add_command<SimulateRequest>(
      layout, "simulate", "time, bubble, waits, memory, gathers and critical path of a step", simulate_layouts);
  add_config_arguments(command, request.file)->required();
  add_repeated_option(command, "--layout", request.layouts,
                      "another pipeline.layout to compare with; any number of them");
  add_repeated_option(command, "--variant", request.variants,
                      "another to compare with, with these keys changed: "
                      "\"--pipeline.schedule=zbv --pipeline.chunks=2\"");
  add_cost_options(command, request.costs, request.hardware);
  command.add_option("--format", request.format, "text, json, svg, html or trace")->capture_default_str();
  command.add_flag("--json", request.json, "the same as --format json");
  command.add_flag("--stages-only", request.stages_only, "in pictures, merge segments and units per stage");
  command.add_flag("--compute-only", request.compute_only, "in pictures, F, B, I and W of stages and memory alone");
  command.add_option("--output", request.output, "write to this file instead of standard output")->check(writable());
}

}  // namespace weft
