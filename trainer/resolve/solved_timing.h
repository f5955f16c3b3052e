// When units are gathered, dropped and reduced under residency "auto": solved once for the whole step from its order,
// its sizes and what actions cost, under a budget for each rank, and then the same for all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/timing/timed_step.h"
#include "trainer/config/config.h"
#include "trainer/layout/stage_layout.h"

namespace weft {

// Whether the configuration asks for it: all families do, or none (config_shard_rules.cpp).
bool is_solved(const Config& config);

// Without a plan the budget is too small for any timing under the layout; then `text` says why.
struct SolvedTiming {
  std::optional<TimingPlan> plan;
  std::int64_t smallest_budget = 0;
  std::string text;
};

// Sizes and coordinates of the first rank of each pipeline coordinate, whose parts are the largest: a plan for them is
// one for all, and so every rank of a group gathers in one order. shard.memory_budget bounds all that a dry run
// (dry_run.h) counts, with tokens routed evenly; the plan is walked through before it is given out.
SolvedTiming solve_timing(const Config& config, const Mesh& mesh, const std::vector<StageBlocks>& layout);

// `placed` (place_order in passes.h) as a complete step.
Program complete_solved(Program placed, const TimingPlan& plan);

}  // namespace weft
