// When units are gathered, dropped and reduced under residency "auto". Solved once for the whole step from its order,
// its sizes and the costs of actions, under a budget for each rank. All ranks use the same result.
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

// Without a plan, the budget is too small for any timing under the layout, and `text` says why.
struct SolvedTiming {
  std::optional<TimingPlan> plan;
  std::int64_t smallest_budget = 0;
  std::string text;
};

// Sizes and coordinates are those of the first rank of each pipeline coordinate, which has the largest parts. A plan
// for these ranks holds for all, so every rank of a group gathers in one order. shard.memory_budget bounds everything
// that a dry run (dry_run.h) counts, with tokens routed evenly. The plan is checked by a dry run before it is returned.
SolvedTiming solve_timing(const Config& config, const Mesh& mesh, const std::vector<StageBlocks>& layout);

// `placed` (lower_order in passes.h) as a complete step.
Program add_solved_sharding(Program placed, const TimingPlan& plan);

}  // namespace weft
