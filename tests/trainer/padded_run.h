// A run in which computation and messages last known times. After its own work, a rank sleeps until an action's time is
// over. A message counts as received after its time on the link. The time of a step then depends only on the schedule
// and these times, on any machine. The simulator is compared with such steps.
#pragma once

#include <vector>

#include "parallel/pipeline/simulation/simulate.h"
#include "trainer/costs/cost_table.h"
#include "trainer/measure/measured_costs.h"

namespace weft {

struct PaddedRun {
  Program program;
  ProgramCosts costs;  // the padding
  // Measured as a simulation counts: from the start of the first rank to the end of the last action of any rank. All
  // are of the pipeline of rank 0. Only starts and ends are set.
  std::vector<Simulation> steps;
  std::vector<RankTrace> traces;  // of the steps that [profiling] names
};

// Trains as `config` says, on threads. An action lasts as long as the table says for its segment, or as its own work if
// longer. A message lasts as the table says from send to arrival, concurrently with the work of both ranks
// (tests/parallel/lane_channels.h). So does an exchange of rows behind a part of a computation. Throws Error (request)
// unless the ranks are threads on the CPU.
PaddedRun run_padded(const Config& config, const CostTable& padding);

// Seconds of a step in which the rank did not compute.
double bubble_of(const Program& program, const Simulation& step, int rank);

// Differences between a simulated and a measured step, relative to the simulated seconds of the step.
struct SimulationError {
  double step = 0.0;    // of the step's seconds
  double bubble = 0.0;  // of the bubble, for the rank with the largest difference
  double start = 0.0;   // of an action's start, for the compute action with the largest difference
  double most() const;
};
SimulationError simulation_error(const Program& program, const Simulation& simulation, const Simulation& step);

// The shortest step: disturbances only add time.
const Simulation& least_disturbed(const PaddedRun& run);

}  // namespace weft
