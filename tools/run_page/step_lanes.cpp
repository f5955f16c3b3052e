#include "tools/run_page/reported_run.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "parallel/runtime/error.h"
#include "tools/report/given_costs.h"
#include "trainer/measure/measured_costs.h"
#include "trainer/planning/step_forecast.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

// A box is about 90 bytes of text, and a page has two pictures a run.
constexpr std::size_t most_boxes = 2'000;
constexpr std::size_t most_merged_boxes = 6'000;

// The finest detail that stays within the limits.
Detail detail_for(const Program& program, const ProgramCosts& costs) {
  const std::pair<Detail, std::size_t> choices[] = {{Detail::everything, most_boxes},
                                                    {Detail::stages_only, most_merged_boxes},
                                                    {Detail::compute_only, most_merged_boxes}};
  for (const auto& [detail, most] : choices) {
    if (least_boxes(program, costs, {.detail = detail}) <= most) return detail;
  }
  fail_request("the step has more than {} computations, too many for this page; weft program --rank R draws one rank",
               most_merged_boxes);
}

// Traces of one pipeline, by pipeline rank.
using PipelineTraces = std::map<int, const RankTrace*>;

PipelineTraces fullest_pipeline(const Mesh& mesh, const std::vector<RankTrace>& traces) {
  std::map<std::tuple<int, int, int, int>, PipelineTraces> pipelines;
  for (const RankTrace& trace : traces) {
    if (trace.rank < 0 || trace.rank >= mesh.world()) {
      fail_request("there is a trace of rank {}; the run has {} ranks", trace.rank, mesh.world());
    }
    const Coordinates at = mesh.coordinates(trace.rank);
    pipelines[{at.dp_replicate, at.dp_shard, at.cp, at.tp}][at.pp] = &trace;
  }
  PipelineTraces fullest;
  for (const auto& [at, ranks] : pipelines) {
    if (ranks.size() > fullest.size()) fullest = ranks;
  }
  return fullest;
}

// Spans of a step's actions, by pipeline rank and position in the list.
using StepSpans = std::map<int, std::vector<const TraceSpan*>>;

// The start of the first action, and the end of the last.
std::pair<double, double> ends_of(const StepSpans& spans) {
  const TraceSpan& any = *spans.begin()->second.front();
  std::pair ends(any.begin, any.end);
  for (const auto& [rank, actions] : spans) {
    for (const TraceSpan* span : actions) {
      ends = {std::min(ends.first, span->begin), std::max(ends.second, span->end)};
    }
  }
  return ends;
}

// Actions of a lane that are closer than a thousandth of the step touch: a merged box joins only those that do.
void close_gaps(const Program& program, Simulation& step) {
  const double near = step.seconds / 1000.0;
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
    std::map<Lane, double> ends;
    for (std::size_t i = 0; i < step.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      SimulatedAction& times = step.ranks[rank][i];
      if (is_reshard(action.op) || times.end <= times.start) continue;
      const auto [last, fresh] = ends.try_emplace(lane_of(program, action), times.end);
      if (!fresh && times.start > last->second && times.start - last->second < near) times.start = last->second;
      last->second = times.end;
    }
  }
}

Simulation simulation_of(const Program& program, const StepSpans& spans) {
  const auto [first, last] = ends_of(spans);
  Simulation step{.ranks = {}, .seconds = last - first};
  for (int rank = 0; rank < std::ssize(program.ranks); ++rank) {
    auto& actions = step.ranks.emplace_back(program.ranks[static_cast<std::size_t>(rank)].size());
    const auto traced = spans.find(rank);
    if (traced == spans.end()) continue;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      actions[i].start = traced->second[i]->begin - first;
      actions[i].end = traced->second[i]->end - first;
    }
  }
  return step;
}

MeasuredStep measured_step(const ResolvedRun& run, const Program& program, const PipelineTraces& traces,
                           Detail detail) {
  std::map<std::int64_t, StepSpans> steps;
  for (const auto& [pipeline_rank, trace] : traces) {
    const Program own = step_program(run, run.mesh().coordinates(trace->rank));
    for (const TracedAction& action : traced_actions(run.config(), own, *trace)) {
      steps[action.span->step][pipeline_rank].push_back(action.span);
    }
  }
  std::vector<std::pair<double, std::int64_t>> times;
  MeasuredStep measured;
  for (const auto& [step, spans] : steps) {
    measured.recorded.push_back(step);
    // A step that some rank's file lacks, or has twice, cannot be put on one axis.
    const bool whole = spans.size() == traces.size() && std::ranges::all_of(spans, [&](const auto& of_rank) {
                         return of_rank.second.size() == program.ranks[static_cast<std::size_t>(of_rank.first)].size();
                       });
    if (!whole) continue;
    const auto [first, last] = ends_of(spans);
    times.emplace_back(last - first, step);
  }
  if (times.empty()) fail_request("the traces of the ranks have no step in common");
  std::ranges::sort(times);
  measured.step = times[(times.size() - 1) / 2].second;
  for (const auto& [rank, trace] : traces) measured.traced.push_back(rank);

  const std::size_t ranks = program.ranks.size();
  SimulatedStep step{.simulation = simulation_of(program, steps.at(measured.step)),
                     .memory = std::vector<std::vector<MemorySample>>(ranks),
                     .peak_bytes = std::vector<std::int64_t>(ranks),
                     .channels = lane_channels(run.config())};
  for (int rank = 0; rank < std::ssize(program.ranks); ++rank) {
    step.times.push_back(rank_times(program, step.simulation, rank, step.channels));
  }
  if (detail != Detail::everything) close_gaps(program, step.simulation);
  measured.picture = picture_of(program, step, {.title = "measured", .detail = detail});
  for (PictureRank& rank : measured.picture.ranks) {
    if (traces.contains(rank.rank)) continue;
    rank.boxes.clear();
    rank.idle.clear();
  }
  return measured;
}

}  // namespace

StepLanes step_lanes(const Config& config, const std::filesystem::path& directory) {
  const ResolvedRun run(config);
  StepLanes lanes;
  std::vector<RankTrace> all;
  PipelineTraces traces;
  try {
    all = traces_in(directory, run.mesh().world());
    traces = fullest_pipeline(run.mesh(), all);
  } catch (const Error& error) {
    lanes.unmeasured = error.what();
  }
  Coordinates at = traces.empty() ? Coordinates{} : run.mesh().coordinates(traces.begin()->second->rank);
  at = run.mesh().coordinates(run.mesh().rank_at(0, at.dp_replicate, at.dp_shard, at.cp, at.tp));

  const CostSource source("weft report", "", "");
  Program program = step_program(run, at);
  const StepCosts costs = source.costs_of(run.config(), run.mesh(), program);
  const Detail detail = detail_for(program, costs.costs);
  const ForecastStep forecast = simulate_run(run, std::move(program), costs.costs, costs.channels, at);
  lanes.planned = picture_of(forecast.program, forecast.step, {.title = "planned", .detail = detail});
  lanes.costs = source.text(run.config());
  for (const DryRun& rank : forecast.ranks) lanes.peaks.push_back(rank.peak);
  if (traces.empty()) return lanes;
  try {
    lanes.measured = measured_step(run, forecast.program, traces, detail);
  } catch (const Error& error) {
    lanes.unmeasured = error.what();
  }
  return lanes;
}

Picture paired(const StepLanes& lanes) {
  Picture picture = lanes.planned;
  if (!lanes.measured) return picture;
  const Picture& measured = lanes.measured->picture;
  picture.seconds = std::max(picture.seconds, measured.seconds);
  picture.lanes.clear();
  for (const Lane lane : all_lanes) {
    const auto uses = [lane](const Picture& one) { return std::ranges::find(one.lanes, lane) != one.lanes.end(); };
    if (uses(lanes.planned) || uses(measured)) picture.lanes.push_back(lane);
  }
  picture.ranks.clear();
  picture.paired = true;
  for (std::size_t rank = 0; rank < lanes.planned.ranks.size(); ++rank) {
    picture.ranks.push_back(lanes.planned.ranks[rank]);
    picture.ranks.back().name = "planned";
    picture.ranks.push_back(measured.ranks[rank]);
    picture.ranks.back().name = "measured";
  }
  for (PictureHop& hop : picture.hops) {
    hop.from_rank *= 2;
    hop.to_rank *= 2;
  }
  return picture;
}

}  // namespace weft
