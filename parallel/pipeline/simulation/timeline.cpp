#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "parallel/pipeline/simulation/simulate.h"

namespace weft {

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
