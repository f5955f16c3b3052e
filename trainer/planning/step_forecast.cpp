#include "trainer/planning/step_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "trainer/layout/stage_layout.h"
#include "trainer/planning/walk.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

// The kind of an action's work: "compute", "expert exchanges", "gathers", "messages".
std::string words_of(Op op) {
  if (is_compute(op)) return "compute";
  if (is_message(op)) return "messages";
  if (is_row_exchange(op)) return "expert exchanges";
  if (takes_kept(op)) return "host copies";
  if (op == Op::gradient_norm || op == Op::optimizer_step) return "norm and optimizer";
  return is_gather(op) || is_reshard(op) ? "gathers" : "reductions";
}

std::string words_of(Group group) {
  if (group == Group::ep || group == Group::ep_inner) return "expert exchanges";
  if (group == Group::ep_relay) return "token relays";
  if (group == Group::etp) return "expert tensor collectives";
  if (group == Group::tp) return "tensor collectives";
  if (group == Group::cp) return "context collectives";
  return fmt::format("{} collectives", name_of(group));
}

// The parts above zero, longest first.
std::vector<StepPart> longest_first(const std::map<std::string, double>& seconds) {
  // Differences of times leave sums of their roundings.
  constexpr double rounding = 1e-9;
  double all = 0.0;
  for (const auto& [what, sum] : seconds) all += sum;
  std::vector<StepPart> parts;
  for (const auto& [what, sum] : seconds) {
    if (sum > rounding * all) parts.push_back({what, sum});
  }
  std::ranges::stable_sort(parts, std::ranges::greater{}, &StepPart::seconds);
  return parts;
}

// An action on the critical path, with the seconds until the next action on it starts, because it lets that one start.
// These seconds add up to the step.
struct PathAction {
  const Action* action = nullptr;  // in the program
  int rank = 0;                    // pipeline rank
  double seconds = 0.0;
};

std::vector<PathAction> path_actions(const Program& program, const Simulation& simulation,
                                     const std::vector<ActionAt>& path) {
  const auto start_of = [&](const ActionAt& at) {
    return simulation.ranks[static_cast<std::size_t>(at.rank)][at.index].start;
  };
  std::vector<PathAction> actions;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const double end = i + 1 < path.size() ? start_of(path[i + 1]) : simulation.seconds;
    const Action& action = program.ranks[static_cast<std::size_t>(path[i].rank)][path[i].index];
    actions.push_back({&action, path[i].rank, end - start_of(path[i])});
  }
  return actions;
}

// Seconds of collectives beside computation of the same action.
double covered_in(const ActionCosts& costs, const Action& action) {
  if (!action.segment || action.part.count > 1 || action.op == Op::backward_weight) return 0.0;
  return costs.segments[static_cast<std::size_t>(*action.segment)].covered(makes_input_gradient(action.op));
}

// Adds the seconds of a compute action.
void add_compute_parts(const Program& program, const ActionCosts& costs, const Action& action, double seconds,
                       const ComputeCollectives& collectives, std::map<std::string, double>& parts) {
  double inside = 0.0, under_way = 0.0;
  for (const auto& [group, cost] : collectives) {
    inside += cost_of(program, cost, action);
    under_way += cost_of(program, cost, action) + covered_in(cost, action);
  }
  const double waited = under_way > 0.0 ? std::max(seconds - cost_of(program, costs, action), 0.0) : 0.0;
  for (const auto& [group, cost] : collectives) {
    const double exposed = cost_of(program, cost, action);
    if (under_way > 0.0) parts[words_of(group)] += exposed + waited * (exposed + covered_in(cost, action)) / under_way;
  }
  parts["computation"] += seconds - inside - waited;
}

// Seconds of the critical path by the words of their action.
std::vector<StepPart> path_by_place(const Program& program, const SimulatedStep& step) {
  std::map<std::string, double> parts;
  for (const auto& [action, rank, seconds] : path_actions(program, step.simulation, step.critical_path)) {
    const bool placed = !is_message(action->op) && action->op != Op::gradient_norm && action->op != Op::optimizer_step;
    std::string what = words_of(action->op);
    if (placed) what += fmt::format(" of stage {} on rank {}", action->stage.value_or(0), rank);
    parts[what] += seconds;
  }
  return longest_first(parts);
}

// The rank that ended a wait: for a message, its sender.
int ended_by(const Program& program, const Action& waiting, const ActionAt& after) {
  const Action& ended = program.ranks[static_cast<std::size_t>(after.rank)][after.index];
  if (is_receive(waiting.op)) return *waiting.peer;
  return is_receive(ended.op) ? *ended.peer : after.rank;
}

std::string wait_text(Wait wait, int rank, int other) {
  if (wait == Wait::message) return fmt::format("rank {} for messages from rank {}", rank, other);
  if (wait == Wait::peers) return fmt::format("rank {} for rank {} before the update", rank, other);
  return fmt::format("rank {} for {}", rank,
                     wait == Wait::gather      ? "gathers"
                     : wait == Wait::reduction ? "reductions"
                     : wait == Wait::rows      ? "rows of experts"
                     : wait == Wait::host      ? "copies to or from host memory"
                                               : name_of(wait));
}

// Seconds that compute lanes wait, by the words of their cause.
std::vector<StepPart> waits_of(const Program& program, const SimulatedStep& step) {
  // Actions on a channel shared with compute delay compute.
  const auto channel_of = [&](Lane lane) { return step.channels.channel[static_cast<std::size_t>(lane)]; };
  std::map<std::string, double> waits;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const SimulatedAction& time = step.simulation.ranks[rank][i];
      const Action& action = program.ranks[rank][i];
      if (is_reshard(action.op) || !time.after) continue;
      if (channel_of(lane_of(program, action)) != channel_of(Lane::compute)) continue;
      if (time.waited > 0.0)
        waits[wait_text(time.wait, static_cast<int>(rank), ended_by(program, action, *time.after))] += time.waited;
    }
  }
  return longest_first(waits);
}

std::int64_t saved(const BucketBytes& bytes) {
  return bytes[Bucket::activations] + bytes[Bucket::moe_routing];
}

// Bytes by stage, for the stages of a rank.
std::vector<std::int64_t> left_by_forwards(const Program& program, int rank, const LedgerWalk& walk) {
  std::vector<std::int64_t> left(program.stages.size(), 0);
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  const int microbatch = program.microbatches > 1 ? 1 : 0;
  std::int64_t before = saved(walk.before);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::int64_t after = saved(walk.actions[i].after);
    // Received tensors are kept too; a sent tensor replaces the one of the message before it.
    const Op op = actions[i].op;
    const bool goes_forward =
        op == Op::forward || op == Op::send_forward || op == Op::receive_forward || op == Op::wait_offload;
    if (goes_forward && actions[i].microbatch == microbatch) {
      left[static_cast<std::size_t>(*actions[i].stage)] += after - before;
    }
    before = after;
  }
  return left;
}

// Where ranks of a stage differ, those of other coordinates than were simulated among them; nothing otherwise.
std::vector<ClassPeak> peaks_where_ranks_differ(StepPrograms& programs, Routing routing) {
  const ResolvedRun& run = programs.run();
  const auto stages = static_cast<std::size_t>(run.mesh().degrees().pipeline);
  if (rank_classes(run.config(), run.mesh()).size() == stages) return {};
  return class_peaks(programs, routing);
}

// A gather or reduction over one rank, and one of parameters that are used where they lie, exchanges nothing.
void count_exchanges(const Mesh& mesh, const Program& program, int pipeline_rank, StepForecast& forecast) {
  const int rank = mesh.rank_at(pipeline_rank, 0, 0, 0, 0);
  for (const Action& action : program.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    if (!is_gather(action.op) && !is_reduction(action.op)) continue;
    const WalkKind kind = kind_of(program, mesh, rank, action);
    forecast.reductions += is_reduction(kind);
    if (!is_gather(kind)) continue;
    ++forecast.gathers;
    forecast.gathered_bytes += action.bytes;
  }
}

}  // namespace

std::vector<StepPart> path_parts(const Program& program, const ActionCosts& costs, const Simulation& simulation,
                                 const ComputeCollectives& collectives) {
  std::map<std::string, double> parts;
  for (const auto& [action, rank, seconds] : path_actions(program, simulation, critical_path(simulation))) {
    if (is_compute(action->op)) {
      add_compute_parts(program, costs, *action, seconds, collectives, parts);
    } else {
      parts[words_of(action->op)] += seconds;
    }
  }
  return longest_first(parts);
}

std::vector<StepPart> mean_parts(const Program& program, const ActionCosts& costs, const Simulation& simulation,
                                 const ComputeCollectives& collectives, const LaneChannels& channels) {
  std::map<std::string, double> parts;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const SimulatedAction& simulated = simulation.ranks[rank][i];
      const Action& action = program.ranks[rank][i];
      if (!is_compute(action.op)) continue;
      add_compute_parts(program, costs, action, simulated.end - simulated.start, collectives, parts);
    }
    const RankTimes times = rank_times(program, simulation, static_cast<int>(rank), channels);
    parts["exposed gathers"] += times.gathers;
    parts["exposed reductions"] += times.reductions;
    parts["waits for rows"] += times.rows;
    parts["waits for host memory"] += times.host;
    parts["bubble"] += times.bubble;
    parts["norm and optimizer"] += times.update;
  }
  for (auto& [what, seconds] : parts) seconds /= static_cast<double>(program.ranks.size());
  return longest_first(parts);
}

std::vector<StepPart> inside_computation(const Program& program, const ComputeCollectives& collectives) {
  std::map<std::string, double> most;
  for (const auto& [group, cost] : collectives) {
    double& largest = most[words_of(group)];
    for (const auto& actions : program.ranks) {
      double sum = 0.0;
      for (const Action& action : actions) sum += is_compute(action.op) ? cost_of(program, cost, action) : 0.0;
      largest = std::max(largest, sum);
    }
  }
  return longest_first(most);
}

ForecastStep simulate_run(const ResolvedRun& run, Program program, const ProgramCosts& costs,
                          const LaneChannels& channels, const Coordinates& at) {
  ForecastStep result{std::move(program), {}, {}};
  result.ranks = dry_runs(run.config(), run.mesh(), result.program, at);
  std::vector<LedgerWalk> ledgers;
  for (const DryRun& rank : result.ranks) ledgers.push_back(rank.walk);
  result.step = simulate_step(result.program, costs, channels, ledgers);
  return result;
}

StepForecast forecast_of(const ResolvedRun& run, const ForecastStep& simulated) {
  const auto& [program, step, ranks] = simulated;
  StepForecast forecast;
  forecast.layout = to_string(run.layout(), run.config().model);
  forecast.seconds = step.simulation.seconds;
  forecast.times = step.times;
  for (const RankTimes& times : step.times) {
    forecast.bubble += times.bubble;
    forecast.waits.raise_to(times);
  }
  const double all = forecast.seconds * static_cast<double>(step.times.size());
  forecast.bubble = all > 0.0 ? forecast.bubble / all : 0.0;
  for (int rank = 0; rank < std::ssize(ranks); ++rank) {
    const BucketBytes& bytes = ranks[static_cast<std::size_t>(rank)].peak;
    if (rank == 0 || bytes.total() > forecast.peak.total()) {
      forecast.fullest_rank = rank;
      forecast.peak = bytes;
    }
    count_exchanges(run.mesh(), program, rank, forecast);
  }
  StepPrograms programs(run);
  for (const auto& [other, peak] : peaks_where_ranks_differ(programs, Routing::even)) {
    if (peak.total() <= forecast.peak.total()) continue;
    forecast.fullest_rank = other.at.pp;
    forecast.peak = peak;
  }
  if (routing_decides(run.config())) {
    forecast.worst_peak_bytes = fullest_peak(programs, Routing::worst).total();
  }
  forecast.path = path_by_place(program, step);
  forecast.longest_waits = waits_of(program, step);
  return forecast;
}

LayoutMemory layout_memory(const ResolvedRun& run) {
  StepPrograms programs(run);
  const Program& program = programs.of_first_rank();
  LayoutMemory memory;
  memory.kept.resize(program.stages.size());
  memory.peak.resize(program.ranks.size());
  const auto walk = [&](Routing routing, auto set) {
    const std::vector<DryRun> ranks = dry_runs(run.config(), run.mesh(), program, {}, routing);
    std::vector<std::int64_t> peaks;
    for (const DryRun& rank : ranks) peaks.push_back(rank.peak.total());
    for (const auto& [other, peak] : peaks_where_ranks_differ(programs, routing)) {
      std::int64_t& of_stage = peaks[static_cast<std::size_t>(other.at.pp)];
      of_stage = std::max(of_stage, peak.total());
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      set(memory.peak[rank], peaks[rank]);
      const auto left = left_by_forwards(program, static_cast<int>(rank), ranks[rank].walk);
      for (std::size_t stage = 0; stage < left.size(); ++stage) {
        if (program.stages[stage].rank == static_cast<int>(rank)) set(memory.kept[stage], left[stage]);
      }
    }
    return ranks;
  };
  for (const DryRun& rank : walk(Routing::even, [](RoutedBytes&bytes, std::int64_t even) { bytes.even = even; })) {
    memory.before.push_back(rank.walk.before);
  }
  if (routing_decides(run.config())) {
    walk(Routing::worst, [](RoutedBytes& bytes, std::int64_t worst) { bytes.worst = worst; });
  }
  return memory;
}

}  // namespace weft
