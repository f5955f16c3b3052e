// A simulated step with the readings that its pictures and tables need.
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
  std::vector<std::int64_t> peak_bytes = {};           // along the list: of the ledger, or of the tables
  std::vector<ActionAt> critical_path = {};
  LaneChannels channels = LaneChannels::own();
};

// `ledgers`, by pipeline rank, give the bytes (memory_curve); without them the tables do. Throws Error (failure) if a
// rank waits forever.
SimulatedStep simulate_step(const Program& program, const ProgramCosts& costs,
                            const LaneChannels& channels = LaneChannels::own(),
                            std::span<const LedgerWalk> ledgers = {});

}  // namespace weft
