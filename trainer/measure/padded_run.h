// A run in which computation and messages last known times: when its own work is done, a rank sleeps until an action's
// time is up, and what is sent is taken for received when the link has had it for its time.
// What a step then takes is what its schedule makes of those times and nothing else, on any machine, so that the
// simulator can be held against it.
#pragma once

#include <vector>

#include "parallel/pipeline/simulation/simulate.h"
#include "trainer/costs/cost_table.h"
#include "trainer/measure/measured_costs.h"

namespace weft {

struct PaddedAction {
  double begin = 0.0, end = 0.0;  // seconds since the first rank began the step
};

struct PaddedStep {
  double seconds = 0.0;                          // to the end of the last action of any rank
  std::vector<std::vector<PaddedAction>> ranks;  // by pipeline rank, one an action
};

struct PaddedRun {
  Program program;
  ProgramCosts costs;  // what the padding is
  std::vector<PaddedStep> steps;
  std::vector<RankTrace> traces;  // of the steps that [profiling] names
};

// Trains as `config` says, on threads. An action takes what the table says of its segment, or its own work if that is
// more; a message takes what the table says between its send and its arrival, beside whatever both ranks do
// (LaneChannels::delayed). Throws Error (request) unless the ranks are one pipeline of threads on the CPU.
PaddedRun run_padded(const Config& config, const CostTable& padding);

// What a rank did not compute in.
double bubble_of(const Program& program, const PaddedStep& step, int rank);

// How far a simulated step is from one that ran, in parts of the simulated one.
struct SimulationError {
  double step = 0.0;    // of its length
  double bubble = 0.0;  // of the bubble of the rank where that is worst
  double start = 0.0;   // of the action of computation whose start is worst
  double most() const;
};
SimulationError simulation_error(const Program& program, const Simulation& simulation, const PaddedStep& step);

// The step that took least: what disturbs a run only adds to it.
const PaddedStep& least_disturbed(const PaddedRun& run);

}  // namespace weft
