#include "trainer/planning/step_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace weft {
namespace {

std::string words_of(Group group) {
  if (group == Group::ep || group == Group::ep_inner) return "expert exchanges";
  if (group == Group::ep_relay) return "token relays";
  if (group == Group::etp) return "expert tensor collectives";
  if (group == Group::tp) return "tensor collectives";
  if (group == Group::cp) return "context collectives";
  return fmt::format("{} collectives", name_of(group));
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

}  // namespace

std::string words_of(Op op) {
  if (is_compute(op)) return "compute";
  if (is_message(op)) return "messages";
  if (is_row_exchange(op)) return "expert exchanges";
  if (takes_kept(op)) return "host copies";
  if (op == Op::gradient_norm || op == Op::optimizer_step) return "norm and optimizer";
  return is_gather(op) || is_reshard(op) ? "gathers" : "reductions";
}

std::vector<StepPart> longest_first(const std::map<std::string, double>& seconds) {
  std::vector<StepPart> parts;
  for (const auto& [what, sum] : seconds) {
    if (sum > 0.0) parts.push_back({what, sum});
  }
  std::ranges::stable_sort(parts, std::ranges::greater{}, &StepPart::seconds);
  return parts;
}

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

}  // namespace weft
