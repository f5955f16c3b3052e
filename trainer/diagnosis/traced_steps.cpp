#include "trainer/diagnosis/traced_steps.h"

#include <algorithm>

#include "trainer/diagnosis/program_figures.h"
#include "trainer/resolved_run.h"
#include "trainer/step_plan.h"

namespace weft {
namespace {

// A gather of a list, and the last computation before the first that reads what it gathers; `none` where there is none.
constexpr std::size_t none = static_cast<std::size_t>(-1);
struct GatherPlace {
  std::size_t gather = none, compute_before_use = none;
};

std::vector<GatherPlace> gather_places(const Program& program, const std::vector<Action>& actions) {
  std::vector<GatherPlace> places;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!is_gather(actions[i].op) || actions[i].bytes == 0) continue;
    std::size_t use = i + 1;
    while (use < actions.size() && !reads_unit(program, actions[use], *actions[i].unit)) ++use;
    GatherPlace place{i, none};
    for (std::size_t before = use; before-- > 0 && place.compute_before_use == none;) {
      if (is_compute(actions[before].op)) place.compute_before_use = before;
    }
    places.push_back(place);
  }
  return places;
}

bool is_comparable(const Program& program, const ProgramSegment& segment) {
  if (!segment.collectives.empty()) return false;
  return std::none_of(segment.units.begin(), segment.units.end(), [&](int unit) {
    return program.units[static_cast<std::size_t>(unit)].family == Family::experts;
  });
}

void add_step(const Program& program, const std::vector<Action>& actions, const std::vector<GatherPlace>& places,
              std::span<const TracedAction> step, TracedRank& rank) {
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!is_compute(actions[i].op)) continue;
    const ProgramSegment& segment = program.segments[static_cast<std::size_t>(*actions[i].segment)];
    const double seconds = step[i].span->end - step[i].span->begin;
    const auto [found, fresh] = rank.computed.try_emplace({segment.name, actions[i].op});
    TracedCompute& compute = found->second;
    compute.least = fresh ? seconds : std::min(compute.least, seconds);
    compute.comparable = is_comparable(program, segment);
    ++compute.a_step;
  }
  for (const GatherPlace& place : places) {
    if (place.compute_before_use == none) continue;
    ++rank.gathers;
    const TraceSpan &gather = *step[place.gather].span, &before = *step[place.compute_before_use].span;
    if (place.compute_before_use > place.gather || gather.end <= before.end) continue;
    ++rank.late_gathers;
    rank.late_seconds += gather.end - std::max(gather.begin, before.end);
  }
}

}  // namespace

double TracedRank::compute_seconds() const {
  double seconds = 0.0;
  for (const auto& [what, compute] : computed) seconds += compute.least * compute.a_step;
  return seconds;
}

std::vector<TracedRank> traced_ranks(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces) {
  const ResolvedRun run(config);
  std::vector<TracedRank> ranks;
  for (const RankTrace& trace : traces) {
    const Coordinates at = mesh.coordinates(std::clamp(trace.rank, 0, mesh.world() - 1));
    const Program program = step_program(run, at);
    const auto traced = traced_actions(program, mesh, trace);
    const auto& actions = program.ranks[static_cast<std::size_t>(at.pp)];
    const auto places = gather_places(program, actions);
    const auto steps = static_cast<int>(traced.size() / actions.size());
    TracedRank& rank = ranks.emplace_back();
    rank.rank = trace.rank;
    rank.pipeline_rank = at.pp;
    for (const GatherPlace& place : places) rank.gather_bytes.push_back(actions[place.gather].bytes);
    for (std::size_t first = 0; first < traced.size(); first += actions.size()) {
      add_step(program, actions, places, std::span(traced).subspan(first, actions.size()), rank);
    }
    for (auto& [what, compute] : rank.computed) compute.a_step /= steps;
    rank.gathers /= steps;
    rank.late_gathers /= steps;
    rank.late_seconds /= steps;
  }
  return ranks;
}

}  // namespace weft
