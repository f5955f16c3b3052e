// The validator of plans of reshard timing. It shares no code with the solver.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

// The faults of a plan, in words. Empty: the plan can run, with any durations, within every rank's budget.
std::vector<std::string> find_plan_faults(const TimingProblem& problem, const TimingPlan& plan, bool pin_reductions);

}  // namespace weft
