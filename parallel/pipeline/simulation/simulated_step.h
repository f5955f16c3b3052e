// A simulated step with all that is read off it, as the pictures and tables of it need it.
#pragma once

#include <vector>

#include "parallel/pipeline/simulation/simulate.h"

namespace weft {

struct SimulatedStep {
  Simulation simulation;
  std::vector<RankTimes> times;                   // by pipeline rank
  std::vector<std::vector<MemorySample>> memory;  // by pipeline rank
  std::vector<ActionAt> critical_path;
  LaneChannels channels = LaneChannels::own();
};

// Throws Error (failure) when a rank waits for ever.
SimulatedStep simulate_step(const Program& program, const ProgramCosts& costs,
                            const LaneChannels& channels = LaneChannels::own());

}  // namespace weft
