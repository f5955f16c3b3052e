#include "parallel/pipeline/simulation/simulated_step.h"

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"

namespace weft {

SimulatedStep simulate_step(const Program& program, const ProgramCosts& costs, const LaneChannels& channels,
                            std::span<const LedgerWalk> ledgers) {
  SimulatedStep step{.simulation = simulate(program, costs, channels), .channels = channels};
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    const LedgerWalk* ledger = ledgers.empty() ? nullptr : &ledgers[rank];
    step.times.push_back(rank_times(program, step.simulation, rank, channels));
    step.memory.push_back(memory_curve(program, step.simulation, rank, channels, ledger));
    step.peak_bytes.push_back(ledger ? ledger->peak_bytes() : transient_peak(program, rank).bytes);
  }
  step.critical_path = critical_path(step.simulation);
  return step;
}

}  // namespace weft
