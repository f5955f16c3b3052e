// A step whose gathers and reductions stand where a plan in bytes puts them (timing/): the program as a problem, and
// the plan put back into the list. Between the two nothing is lost: what the plan reserves, the list holds at most, and
// at the plan's costs the list takes as long as the plan says (LaneChannels::shared_collectives()).
#pragma once

#include <cstdint>
#include <span>

#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/simulation/costs.h"
#include "parallel/pipeline/timing/plan.h"

namespace weft {

// `lowered` has order, exchange and segments, and nothing else. `budgets`: bytes, by pipeline rank, of what
// transient_peak (check/check.h) adds up. Units that are not sharded cost no gather; replicated ones are no part of the
// problem, their gradients counted as there all the time.
//
// Throws Error (request) where a unit adds up its gradients in shards: those have no accumulator to give back.
TimingProblem timing_problem(const Program& lowered, const ProgramCosts& costs, std::span<const std::int64_t> budgets);

// Adds UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE of every unit that is not replicated. Each collective stands
// behind the action that triggers it, or behind that of a collective before it in the channel, which it could not
// overtake. `plan` answers timing_problem of the same lists; throws Error (failure) for the plan of others.
Program add_timing(Program lowered, const TimingPlan& plan);

}  // namespace weft
