#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "parallel/pipeline/simulation/simulate.h"

namespace weft {

double adapter_seconds(const ProgramTables& tables, const ProgramCosts& costs, const LaneChannels& channels,
                       const Action& action) {
  if (!costs.have_adapters()) return 0.0;
  if (is_message(action.op)) {
    const bool posted = channels.with_compute(lane_of(tables, action));
    if (is_send(action.op) == posted) return 0.0;
  }
  return cost_of(tables, costs.on_adapters, action);
}

double busiest_adapters(const Program& program, const ProgramCosts& costs, const LaneChannels& channels) {
  std::map<int, double> seconds;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    double& sum = seconds[costs.adapters_of(rank)];
    for (const Action& action : program.ranks[rank]) sum += adapter_seconds(program, costs, channels, action);
  }
  double most = 0.0;
  for (const auto& [node, sum] : seconds) most = std::max(most, sum);
  return most;
}

void StepWaits::raise_to(const RankTimes& times) {
  gathers = std::max(gathers, times.gathers);
  reductions = std::max(reductions, times.reductions);
  rows = std::max(rows, times.rows);
  host = std::max(host, times.host);
}

RankTimes rank_times(const Program& program, const Simulation& simulation, int rank, const LaneChannels& channels) {
  const auto& actions = program.ranks.at(rank);
  const auto& simulated = simulation.ranks.at(rank);
  RankTimes times;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Op op = actions[i].op;
    if (is_reshard(op) || !channels.with_compute(lane_of(program, actions[i]))) continue;
    const double seconds = simulated[i].end - simulated[i].start;
    if (is_compute(op)) times.compute += seconds;
    if (is_gather(op)) times.gathers += seconds;
    if (is_reduction(op) || op == Op::tie_gradient) times.reductions += seconds;
    if (is_row_exchange(op)) times.rows += seconds;
    if (is_host_copy(op)) times.host += seconds;
    if (op == Op::gradient_norm || op == Op::optimizer_step) times.update += seconds;
    // A norm that waits for other ranks has waited for its own reductions before that.
    const Wait wait = simulated[i].wait;
    double& waited = wait == Wait::gather ? times.gathers
                     : wait == Wait::rows ? times.rows
                     : wait == Wait::host ? times.host
                                          : times.reductions;
    waited += simulated[i].for_collectives;
  }
  const double used = times.compute + times.gathers + times.reductions + times.rows + times.host + times.update;
  times.bubble = std::max(simulation.seconds - used, 0.0);
  return times;
}

std::vector<ActionAt> critical_path(const Simulation& simulation) {
  std::optional<ActionAt> at;
  double end = -1.0;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const auto& actions = simulation.ranks[rank];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      // Of actions with the same end, the last in its list: an action without duration closes the path, too.
      if (actions[i].end < end || (actions[i].end == end && static_cast<int>(rank) != at->rank)) continue;
      end = actions[i].end;
      at = ActionAt{static_cast<int>(rank), i};
    }
  }
  std::vector<ActionAt> path;
  for (; at; at = simulation.ranks[at->rank][at->index].after) path.push_back(*at);
  std::ranges::reverse(path);
  return path;
}

std::string format_timeline(const Program& program) {
  // Room for the largest microbatch number and a space.
  const std::size_t width = 2 + std::to_string(std::max(program.microbatches - 1, 0)).size();
  const Simulation step = simulate(program, even_costs(program));
  const auto column = [&](double time) { return static_cast<std::size_t>(std::lround(time)) * width; };
  std::string text;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::string row;
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      const SimulatedAction& timed = step.ranks[rank][i];
      row.resize(column(timed.end), ' ');
      const std::size_t room = row.size() - column(timed.start);
      const int microbatch = *action.microbatch;
      const std::string cell = action.op == Op::forward           ? fmt::format("{:>{}}", microbatch, room - 1)
                               : action.op == Op::backward_weight ? fmt::format("<{:^{}}>", microbatch, room - 2)
                               : action.op == Op::recompute       ? fmt::format("{{{:^{}}}}", microbatch, room - 2)
                                                                  : fmt::format("[{:^{}}]", microbatch, room - 2);
      row.replace(column(timed.start), cell.size(), cell);
    }
    text += fmt::format("pp {:<3}|{}|\n", rank, row);
  }
  return text;
}

}  // namespace weft
