#include "tools/layout/sweep_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/quantities.h"
#include "tools/picture/pareto_svg.h"
#include "tools/report/bench_table.h"
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

// Schedules from files come after the named schedules.
std::size_t style_of_schedule(const std::string& name) {
  const auto known = schedules();
  return static_cast<std::size_t>(
      std::find_if(known.begin(), known.end(), [&](const Schedule& schedule) { return schedule.name == name; }) -
      known.begin());
}

// Points with equal results that differ only in residency; they share one line of the table.
struct Same {
  const SweepPoint* point = nullptr;  // the first of them
  std::vector<std::string> residencies;

  bool takes(const SweepPoint& other) const {
    return point->schedule == other.schedule && point->chunks == other.chunks &&
           point->microbatches == other.microbatches && point->forecast.layout == other.forecast.layout &&
           point->forecast.seconds == other.forecast.seconds &&
           point->forecast.peak.total() == other.forecast.peak.total();
  }
  std::string residency() const { return fmt::format("{}", fmt::join(residencies, " = ")); }
};

std::vector<Same> ranked(const Sweep& sweep) {
  std::vector<const SweepPoint*> points;
  for (const SweepPoint& point : sweep.points) points.push_back(&point);
  std::sort(points.begin(), points.end(),
            [](const SweepPoint* one, const SweepPoint* other) { return one->rank < other->rank; });
  std::vector<Same> results;
  for (const SweepPoint* point : points) {
    // Points with equal time are at the end.
    auto found = results.rbegin();
    while (found != results.rend() && found->point->forecast.seconds == point->forecast.seconds &&
           !found->takes(*point)) {
      ++found;
    }
    if (found == results.rend() || !found->takes(*point)) {
      results.push_back({point, {}});
      found = results.rbegin();
    }
    // Layouts written differently can be the same layout, so a residency may come up twice.
    const std::string residency = residency_text(*point);
    auto& known = found->residencies;
    if (std::find(known.begin(), known.end(), residency) == known.end()) known.push_back(residency);
  }
  return results;
}

std::vector<std::string> labels_of(const std::vector<Same>& results) {
  std::vector<std::vector<std::string>> values;
  for (const Same& same : results) {
    values.push_back({chunks_text(*same.point), same.point->forecast.layout, same.residency(),
                      fmt::format("{} microbatches", same.point->microbatches)});
  }
  return distinguishing(values);
}

}  // namespace

std::string sweep_csv(const Sweep& sweep, const Overrides& common, const Certainty& certainty) {
  std::string text =
      "rank,tied_rank,front,schedule,chunks,layout,residency,memory_budget,microbatches,seconds,bubble,exposed_gathers,"
      "exposed_reductions,fullest_rank,peak_bytes";
  for (std::size_t b = 0; b < bucket_count; ++b) text += fmt::format(",{}", name_of(static_cast<Bucket>(b)));
  text += ",gathers,gathered_bytes,reductions,words\n";
  std::vector<double> seconds;
  for (const SweepPoint& point : sweep.points) seconds.push_back(point.forecast.seconds);
  const std::vector<int> ranks = ranks_with_ties(seconds, certainty);
  for (const SweepPoint& point : sweep.points) {
    const StepForecast& forecast = point.forecast;
    const int tied_rank = ranks[static_cast<std::size_t>(&point - sweep.points.data())];
    const Overrides words = merged_words(common, point.words);
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", point.rank, tied_rank, point.front ? 1 : 0,
                        field(point.schedule), point.chunks, field(forecast.layout), field(point.residency),
                        field(point.budget), point.microbatches, forecast.seconds, forecast.bubble,
                        forecast.exposed_gathers, forecast.exposed_reductions, forecast.fullest_rank,
                        forecast.peak.total());
    for (const std::int64_t bytes : forecast.peak.bytes) text += fmt::format(",{}", bytes);
    text += fmt::format(",{},{},{},{}\n", forecast.gathers, forecast.gathered_bytes, forecast.reductions,
                        field(shell_text(words)));
  }
  return text;
}

std::string sweep_table(const Sweep& sweep, std::size_t top, bool unit_time, const Certainty& certainty) {
  BenchTable table{{"rank", "schedule", "layout", "residency", "microbatches", "step", "bubble %", "gathers wait",
                    "fullest rank", "gathers", "front"},
                   {}};
  const std::vector<Same> results = ranked(sweep);
  std::vector<double> seconds;
  for (const Same& same : results) seconds.push_back(same.point->forecast.seconds);
  const std::vector<int> ranks = ranks_with_ties(seconds, certainty);
  for (const Same& same : results) {
    if (table.rows.size() == top) break;
    const SweepPoint* point = same.point;
    const StepForecast& forecast = point->forecast;
    table.rows.push_back({rank_text(ranks, table.rows.size()), chunks_text(*point), forecast.layout, same.residency(),
                          std::to_string(point->microbatches), format_time(forecast.seconds, unit_time),
                          fmt::format("{:.1f}", 100.0 * forecast.bubble),
                          format_time(forecast.exposed_gathers, unit_time), format_bytes(forecast.peak.total()),
                          std::to_string(forecast.gathers), point->front ? "*" : ""});
  }
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

std::string sweep_svg(const Sweep& sweep, const std::string& title, bool unit_time) {
  ParetoPicture picture{.title = title, .unit_time = unit_time};
  const std::vector<Same> results = ranked(sweep);
  const std::vector<std::string> labels = labels_of(results);
  for (const Same& same : results) {
    const SweepPoint* point = same.point;
    const StepForecast& forecast = point->forecast;
    ParetoMark mark{.series = point->schedule,
                    .style = style_of_schedule(point->schedule),
                    .seconds = forecast.seconds,
                    .bytes = forecast.peak.total(),
                    .front = point->front};
    mark.label = labels[picture.marks.size()];
    mark.tooltip =
        fmt::format("{}, {}\n{}, {} microbatches\nstep {}, bubble {:.1f} %, {}\n{}", chunks_text(*point),
                    same.residency(), forecast.layout, point->microbatches, format_time(forecast.seconds, unit_time),
                    100.0 * forecast.bubble, format_bytes(forecast.peak.total()), shell_text(point->words));
    picture.marks.push_back(std::move(mark));
  }
  return to_svg(picture);
}

}  // namespace weft
