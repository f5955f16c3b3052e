#include "parallel/pipeline/simulation/simulated_step.h"

namespace weft {

SimulatedStep simulate_step(const Program& program, const ProgramCosts& costs, const LaneChannels& channels) {
  SimulatedStep step{simulate(program, costs, channels), {}, {}, {}, channels};
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    step.times.push_back(rank_times(program, step.simulation, rank, channels));
    step.memory.push_back(memory_curve(program, step.simulation, rank));
  }
  step.critical_path = critical_path(step.simulation);
  return step;
}

}  // namespace weft
