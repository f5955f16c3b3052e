// Figures of each traced rank: its compute time, and the time that computation waited for gathers and reductions.
#include <algorithm>

#include "trainer/diagnosis/evidence.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/compute_times.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

constexpr std::size_t none = static_cast<std::size_t>(-1);

// An exchange in a rank's list, with the actions that show how long computation waited for it.
struct PlacedExchange : TracedExchange {
  std::size_t at = none;
  std::size_t reader = none;   // the first action of the compute lane that cannot run before the exchange has ended
  std::size_t message = none;  // the message that the reader receives
};

bool needs_reduction(const Action& action, int unit) {
  return action.op == Op::gradient_norm || (action.op == Op::wait_reduction && action.unit.value_or(unit) == unit);
}

std::size_t message_of(const Program& program, const std::vector<Action>& actions, std::size_t reader) {
  const Action& action = actions[reader];
  if (!action.segment) return none;
  const int stage = program.segments[*action.segment].stage;
  for (std::size_t before = reader; before-- > 0;) {
    const Action& other = actions[before];
    if (is_receive(other.op) && other.stage == stage && other.microbatch == action.microbatch) return before;
  }
  return none;
}

// Finds the actions that show the wait for the exchange.
void find_reader(const Program& program, const std::vector<Action>& actions, PlacedExchange& exchange) {
  for (std::size_t after = exchange.at + 1; after < actions.size() && exchange.reader == none; ++after) {
    const bool needs = exchange.gathers() ? reads_unit(program, actions[after], exchange.unit)
                                          : needs_reduction(actions[after], exchange.unit);
    if (needs) exchange.reader = after;
  }
  if (exchange.reader != none && program.ranks.size() > 1) {
    exchange.message = message_of(program, actions, exchange.reader);
  }
}

std::vector<PlacedExchange> exchanges_of(const Program& program, const std::vector<Action>& actions) {
  std::vector<PlacedExchange> exchanges;
  std::map<std::pair<int, bool>, std::size_t> last;  // by unit and whether it is a gather
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const bool gathers = is_gather(action.op);
    if (!(gathers || is_reduction(action.op)) || !action.unit || action.bytes == 0) continue;
    const auto [before, first] = last.try_emplace({*action.unit, gathers}, exchanges.size());
    if (!first && !gathers) exchanges[before->second].again = true;
    before->second = exchanges.size();
    exchanges.push_back({{.op = action.op,
                          .unit = *action.unit,
                          .group = program.units[*action.unit].group,
                          .bytes = action.bytes,
                          .again = gathers && !first,
                          .late = gathers && is_late_gather(program, actions, i)},
                         i});
    find_reader(program, actions, exchanges.back());
  }
  return exchanges;
}

// For devices on which lanes have channels of their own.
double wait_for(const PlacedExchange& exchange, std::span<const TracedAction> step) {
  if (exchange.reader == none) return 0.0;
  const TraceSpan& span = *step[exchange.at].span;
  double from = std::max(span.begin, step[exchange.reader].span->begin);
  if (exchange.message != none) from = std::max(from, step[exchange.message].span->end);
  return std::max(std::min(span.end, step[exchange.reader].span->end) - from, 0.0);
}

void add_computation(const Program& program, const std::vector<Action>& actions, std::span<const TracedAction> step,
                     TracedRank& rank) {
  std::map<std::pair<int, int>, double> parts;  // seconds of a computation under way, by segment and microbatch
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!is_compute(actions[i].op)) continue;
    const ProgramSegment& segment = program.segments[*actions[i].segment];
    double& whole = parts[{*actions[i].segment, *actions[i].microbatch}];
    whole += step[i].span->end - step[i].span->begin;
    if (!actions[i].part.last()) continue;
    const double seconds = std::exchange(whole, 0.0);
    const auto [found, fresh] = rank.computed.try_emplace({segment.name, actions[i].op});
    TracedCompute& compute = found->second;
    compute.least = fresh ? seconds : std::min(compute.least, seconds);
    compute.comparable = is_comparable(program, segment);
    ++compute.a_step;
  }
}

// Seconds by traced step and exchange.
using Waits = std::vector<std::vector<double>>;

std::vector<double> waits_of(const std::vector<PlacedExchange>& exchanges, std::span<const TracedAction> step,
                             bool lanes_take_turns) {
  std::vector<double> waits;
  for (const PlacedExchange& exchange : exchanges) {
    const TraceSpan& span = *step[exchange.at].span;
    waits.push_back(lanes_take_turns ? span.end - span.begin : wait_for(exchange, step));
  }
  return waits;
}

// The last rank of a group to start a call waits for no other. So the least wait in the group belongs to the call
// itself.
void add_waits(const Mesh& mesh, std::span<const TracedRank> ranks, std::span<const Waits> waits, std::size_t at,
               TracedRank& rank) {
  for (std::size_t e = 0; e < rank.exchanges.size(); ++e) {
    const std::vector<int> group = mesh.group_of(rank.exchanges[e].group, rank.rank);
    for (std::size_t step = 0; step < waits[at].size(); ++step) {
      double least = waits[at][step][e];
      for (std::size_t other = 0; other < ranks.size(); ++other) {
        const bool peer = std::ranges::find(group, ranks[other].rank) != group.end();
        if (peer && step < waits[other].size()) least = std::min(least, waits[other][step].at(e));
      }
      rank.exchanges[e].wait += least / static_cast<double>(waits[at].size());
    }
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
  std::vector<Waits> waits;
  for (const RankTrace& trace : traces) {
    const Coordinates at = mesh.coordinates(std::clamp(trace.rank, 0, mesh.world() - 1));
    const Program program = step_program(run, at);
    const auto traced = traced_actions(config, program, trace);
    const auto& actions = program.ranks[at.pp];
    const auto exchanges = exchanges_of(program, actions);
    const auto steps = static_cast<int>(traced.size() / actions.size());
    TracedRank& rank = ranks.emplace_back();
    rank.rank = trace.rank;
    rank.pipeline_rank = at.pp;
    rank.exchanges.assign(exchanges.begin(), exchanges.end());
    Waits& own = waits.emplace_back();
    for (std::size_t first = 0; first < traced.size(); first += actions.size()) {
      const auto step = std::span(traced).subspan(first, actions.size());
      add_computation(program, actions, step, rank);
      own.push_back(waits_of(exchanges, step, lanes_take_turns(config)));
    }
    for (auto& [what, compute] : rank.computed) compute.a_step /= steps;
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) add_waits(mesh, ranks, waits, i, ranks[i]);
  return ranks;
}

}  // namespace weft
