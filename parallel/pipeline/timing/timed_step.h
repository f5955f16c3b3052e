// A step with gathers and reductions where a plan in bytes puts them (timing/). It has the program as a problem, and
// the plan put back into the list. Nothing is lost between the two: the list holds at most the bytes that the plan
// reserves. At the plan's costs the list takes the plan's time, if gathers and reductions take turns.
#pragma once

#include <cstdint>
#include <span>

#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/simulation/costs.h"
#include "parallel/pipeline/timing/plan.h"

namespace weft {

// `lowered` has order, exchange and segments, and nothing else. `budgets`: by pipeline rank, in bytes, for the sum of
// transient_peak (accounts/live_bytes.h). Gathers of units that are not sharded cost nothing. Replicated units are not
// part of the problem; their gradients are counted all the time.
//
// Throws Error (request) if a unit adds up its gradients in shards: it has no accumulator to give back.
TimingProblem timing_problem(const Program& lowered, const ProgramCosts& costs, std::span<const std::int64_t> budgets);

// Adds UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE of every unit that is not replicated. Each collective stands
// behind the action that triggers it, or behind that of an earlier collective of the channel, which it cannot overtake.
// `plan` answers timing_problem of the same lists.
Program add_timing(Program lowered, const TimingPlan& plan);

}  // namespace weft
