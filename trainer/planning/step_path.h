// The critical path of a simulated step by kind of work: the reasons for the length of the step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/pipeline/simulation/simulate.h"

namespace weft {

// An action on the critical path, with the seconds until the next action on it starts, because it lets that one start.
// These seconds add up to the step.
struct PathAction {
  const Action* action = nullptr;  // in the program
  int rank = 0;                    // pipeline rank
  double seconds = 0.0;
};
std::vector<PathAction> path_actions(const Program& program, const Simulation& simulation,
                                     const std::vector<ActionAt>& path);

// Seconds of one kind of work or wait: "computation", "tensor collectives", "gathers of stage 3 on rank 3".
struct StepPart {
  std::string what;
  double seconds = 0.0;
  bool operator==(const StepPart&) const = default;
};

// The kind of an action's work: "compute", "expert exchanges", "gathers", "messages".
std::string words_of(Op op);
// The parts above zero, longest first.
std::vector<StepPart> longest_first(const std::map<std::string, double>& seconds);

// Seconds of collectives inside compute actions, by group (cost_model.h). Empty if the costs do not tell them apart.
using ComputeCollectives = std::map<Group, ActionCosts>;

// The parts of the critical path, longest first; they add up to the step. The seconds of compute
// actions are those of `collectives`, and "computation" for the rest. A compute action that waits for shared adapters
// adds the wait to its collectives.
std::vector<StepPart> path_parts(const Program& program, const ActionCosts& costs, const Simulation& simulation,
                                 const ComputeCollectives& collectives);

// The same of the mean rank, with parts that add up to the step too. They are its computation and the collectives
// inside it, and its waits for gathers, reductions and rows of experts. "bubble" is the wait for messages, and either
// end of the step. `channels` are those of the simulation.
std::vector<StepPart> mean_parts(const Program& program, const ActionCosts& costs, const Simulation& simulation,
                                 const ComputeCollectives& collectives, const LaneChannels& channels);

// Collectives inside the compute actions of the step, by group; each of the rank with most. Longest first.
std::vector<StepPart> inside_computation(const Program& program, const ComputeCollectives& collectives);

}  // namespace weft
