#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/layout/layout_sweep.h"
#include "tools/picture/pareto_svg.h"
#include "tools/report/progress_line.h"
#include "tools/report/report_parts.h"
#include "trainer/planning/remedies.h"

namespace weft {
namespace {

std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string residency_text(const SweepPoint& point) {
  return point.budget.empty() ? point.residency : fmt::format("{} {}", point.residency, point.budget);
}

std::string chunks_text(const SweepPoint& point) {
  return point.chunks > 1 ? fmt::format("{} x{}", point.schedule, point.chunks) : point.schedule;
}

// Points with equal results that differ only in residency; they share one line of the table.
struct Same {
  const SweepPoint* point = nullptr;  // the first of them
  std::vector<std::string> residencies;

  bool takes(const SweepPoint& other) const {
    return point->forecast.seconds == other.forecast.seconds && point->schedule == other.schedule &&
           point->chunks == other.chunks && point->microbatches == other.microbatches &&
           point->forecast.layout == other.forecast.layout &&
           point->forecast.peak.total() == other.forecast.peak.total();
  }
  std::string residency() const { return fmt::format("{}", fmt::join(residencies, " = ")); }
};

std::vector<Same> ranked(const Sweep& sweep) {
  std::vector<const SweepPoint*> points;
  for (const SweepPoint& point : sweep.points) points.push_back(&point);
  std::ranges::sort(points, {}, &SweepPoint::rank);
  std::vector<Same> results;
  for (const SweepPoint* point : points) {
    auto found = std::ranges::find_if(results, [&](const Same& same) { return same.takes(*point); });
    if (found == results.end()) found = results.insert(results.end(), Same{point, {}});
    // Layouts written differently can be the same layout, so a residency may come up twice.
    const std::string residency = residency_text(*point);
    auto& known = found->residencies;
    if (std::ranges::find(known, residency) == known.end()) known.push_back(residency);
  }
  return results;
}

// One line per valid combination, in the order of choices; fields with commas or quotes are quoted. Times are seconds,
// or units of the costs. `common` and the words of a point together reproduce the point. "rank" is the rank by time,
// "tied_rank" that of ranks_with_ties.
std::string sweep_csv(const Sweep& sweep, const Overrides& common, const Certainty& certainty) {
  std::string text =
      "rank,tied_rank,front,schedule,chunks,layout,residency,memory_budget,microbatches,seconds,bubble,exposed_gathers,"
      "exposed_reductions,exposed_rows,exposed_host,fullest_rank,peak_bytes";
  for (const Bucket bucket : all_values<Bucket>) text += fmt::format(",{}", name_of(bucket));
  text += ",gathers,gathered_bytes,reductions,words\n";
  const std::vector<int> ranks =
      ranks_with_ties(sweep.points, certainty, [](const SweepPoint& point) { return point.forecast.seconds; });
  for (const SweepPoint& point : sweep.points) {
    const StepForecast& forecast = point.forecast;
    const int tied_rank = ranks[static_cast<std::size_t>(&point - sweep.points.data())];
    const Overrides words = merged_words(common, point.words);
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", point.rank, tied_rank,
                        point.front ? 1 : 0, field(point.schedule), point.chunks, field(forecast.layout),
                        field(point.residency), field(point.budget), point.microbatches, forecast.seconds,
                        forecast.bubble, forecast.waits.gathers, forecast.waits.reductions, forecast.waits.rows,
                        forecast.waits.host, forecast.fullest_rank, forecast.peak.total());
    for (const std::int64_t bytes : forecast.peak.bytes) text += fmt::format(",{}", bytes);
    text += fmt::format(",{},{},{},{}\n", forecast.gathers, forecast.gathered_bytes, forecast.reductions,
                        field(shell_text(words)));
  }
  return text;
}

// The `top` fastest with ranks_with_ties, their certainty, and why other combinations were refused.
std::string sweep_table(const Sweep& sweep, std::size_t top, bool unit_time, const Certainty& certainty) {
  BenchTable table{{"rank", "schedule", "layout", "residency", "microbatches", "step", "bubble %", "fullest rank",
                    "gathers", "front"}};
  std::vector<StepWaits> waits;
  const std::vector<Same> results = ranked(sweep);
  const std::vector<int> ranks =
      ranks_with_ties(results, certainty, [](const Same& same) { return same.point->forecast.seconds; });
  for (const Same& same : results) {
    if (table.rows.size() == top) break;
    const SweepPoint* point = same.point;
    const StepForecast& forecast = point->forecast;
    table.add(rank_text(ranks, table.rows.size()), chunks_text(*point), forecast.layout, same.residency(),
              point->microbatches, format_time(forecast.seconds, unit_time), decimals(100.0 * forecast.bubble, 1),
              format_bytes(forecast.peak.total()), forecast.gathers, point->front ? "*" : "");
    waits.push_back(forecast.waits);
  }
  insert_wait_columns(table, 7, waits, unit_time);
  std::string text = sweep.points.empty() ? "" : aligned_text(table);
  const std::size_t left = results.size() - table.rows.size();
  if (left > 0) text += fmt::format("and {} more that are slower\n", left);
  if (!sweep.points.empty())
    text += "*: no other is as fast with less memory, or faster with as much\n" + certainty.text + "\n";
  if (sweep.refused.empty()) return text;
  text += fmt::format("{}{} of {} combinations cannot be run:\n", text.empty() ? "" : "\n",
                      sweep.choices - sweep.points.size(), sweep.choices);
  for (const auto& [reason, count] : sweep.refused) text += fmt::format("  {:>4}  {}\n", count, reason);
  return text;
}

// One mark per combination. Schedules differ in colour and shape; the front is a line. Labels show the differences
// between combinations.
std::string sweep_svg(const Sweep& sweep, const std::string& title, bool unit_time) {
  ParetoPicture picture{.title = title, .unit_time = unit_time};
  for (const Same& same : ranked(sweep)) {
    const SweepPoint* point = same.point;
    const StepForecast& forecast = point->forecast;
    ParetoMark mark{.series = point->schedule,
                    .style = style_of_schedule(point->schedule),
                    .seconds = forecast.seconds,
                    .bytes = forecast.peak.total(),
                    .front = point->front,
                    .values = {chunks_text(*point), forecast.layout, same.residency(),
                               fmt::format("{} microbatches", point->microbatches)}};
    mark.tooltip =
        fmt::format("{}, {}\n{}, {} microbatches\nstep {}, bubble {:.1f} %, {}\n{}", chunks_text(*point),
                    same.residency(), forecast.layout, point->microbatches, format_time(forecast.seconds, unit_time),
                    100.0 * forecast.bubble, format_bytes(forecast.peak.total()), shell_text(point->words));
    picture.marks.push_back(std::move(mark));
  }
  return to_svg(picture);
}

constexpr const char* sweep_command = "weft layout sweep";

struct SweepRequest {
  std::string file, csv, svg, costs, hardware;
  SweepLists lists;
  std::size_t top = 20;
};

void sweep_layouts(const CLI::App& command, const SweepRequest& request) {
  const Overrides common = overrides_given_to(command, {}, request.file);
  const std::vector<SweepChoice> choices = sweep_choices(request.lists);
  const CostSource costs(sweep_command, request.costs, request.hardware);
  // Prints the warnings on the configuration, once.
  const Config config = read_config_given_to(command, request.file).config;
  warn_of_planned_card(config);
  Sweep sweep;
  {
    ProgressLine line;
    sweep = run_sweep(request.file, common, choices, costs, [&](std::size_t count) {
      line.part(static_cast<std::int64_t>(count), std::ssize(choices),
                [&] { return fmt::format("{}/{} combinations", count, choices.size()); });
    });
  }
  const std::string title = fmt::format("{}, costs {}", request.file, costs.text(config));
  if (!request.csv.empty()) write_result(sweep_command, sweep_csv(sweep, common, costs.certainty(config)), request.csv);
  if (!request.svg.empty()) write_result(sweep_command, sweep_svg(sweep, title, costs.unit_time()), request.svg);
  fmt::print("{}\n{} combinations, {} can be run, {} programs simulated\n\n{}", title, sweep.choices,
             sweep.points.size(), sweep.simulated,
             sweep_table(sweep, request.top, costs.unit_time(), costs.certainty(config)));
  if (sweep.points.empty()) fail_request("{}: error: none of the combinations can be run", sweep_command);
}

}  // namespace

void add_layout_sweep_command(CLI::App& layout) {
  const auto [command, request] = add_command<SweepRequest>(
      layout, "sweep",
      "every combination of schedules, layouts, residencies, ...: ranked by time, and time against memory",
      sweep_layouts);
  add_config_arguments(command, request.file)->required();
  for (std::size_t axis = 0; axis < sweep_axes.size(); ++axis) {
    add_repeated_option(command, sweep_axes[axis].option, request.lists[axis], sweep_axes[axis].help);
  }
  add_cost_options(command, request.costs, request.hardware);
  command.add_option("--csv", request.csv, "write every figure of every combination to this file")->check(writable());
  command.add_option("--svg", request.svg, "draw time against memory to this file")->check(writable());
  command.add_option("--top", request.top, "how many to print")->capture_default_str();
}

}  // namespace weft
