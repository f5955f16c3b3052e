// When units are gathered, dropped and reduced under residency "auto": solved once for the whole step from its order,
// its sizes and what actions cost, under a budget for each rank, and then the same for all ranks.
#pragma once

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/timed_step.h"
#include "trainer/config/config.h"

namespace weft {

// Whether the configuration asks for it: all families do, or none (config_shard_rules.cpp).
bool is_solved(const Config& config);

// Sizes and coordinates of the first rank of each pipeline coordinate, whose parts are the largest: a plan for them is
// one for all, and so every rank of a group gathers in one order. The budget of a rank is what shard.memory_budget
// leaves beside parameters, gradients and states that live all run; workspace and what flows between segments are not
// part of it. Throws Error (request) naming the smallest budget that does.
TimingPlan solve_timing(const Config& config, const Mesh& mesh);

// `placed` (place_order in passes.h) as a complete step.
Program complete_solved(Program placed, const TimingPlan& plan);

}  // namespace weft
