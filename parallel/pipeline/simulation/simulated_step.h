// A simulated step with all that is read off it, as the pictures and tables of it need it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/pipeline/simulation/memory_curve.h"

namespace weft {

struct SimulatedStep {
  Simulation simulation = {};
  std::vector<RankTimes> times = {};                   // by pipeline rank
  std::vector<std::vector<MemorySample>> memory = {};  // by pipeline rank
  std::vector<std::int64_t> peak_bytes = {};           // along its list, as its ledger counts or the tables have it
  std::vector<ActionAt> critical_path = {};
  LaneChannels channels = LaneChannels::own();
};

// `ledgers`, by pipeline rank, say what is held (memory_curve); without them the tables do. Throws Error (failure) when
// a rank waits for ever.
SimulatedStep simulate_step(const Program& program, const ProgramCosts& costs,
                            const LaneChannels& channels = LaneChannels::own(),
                            std::span<const LedgerWalk> ledgers = {});

}  // namespace weft
