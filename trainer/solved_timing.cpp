#include "trainer/solved_timing.h"

#include <algorithm>

#include "parallel/pipeline/passes.h"
#include "parallel/pipeline/timing/solve.h"
#include "parallel/runtime/error.h"
#include "trainer/hardware.h"
#include "trainer/pipeline_order.h"
#include "trainer/step_costs.h"
#include "trainer/step_plan.h"
#include "trainer/update_plan.h"

namespace weft {
namespace {

bool reduces_once(const Config& config) {
  return config.shard_by_family.at(Family::dense).reduction != "auto";
}

// What a rank holds whatever its step does, and what the update takes when nothing else is there.
struct Held {
  std::int64_t always = 0, update = 0;
};

Held held_by(const Config& config, const Mesh& mesh, int pipeline_rank) {
  const Coordinates at = mesh.coordinates(mesh.rank_at(pipeline_rank, 0, 0, 0, 0));
  const BucketBytes bytes = static_bytes(plan_stages(config, mesh, at));
  return {bytes.total(), update_bytes(config, mesh, at).total()};
}

}  // namespace

bool is_solved(const Config& config) {
  const auto dense = config.shard_by_family.find(Family::dense);
  return dense != config.shard_by_family.end() &&
         parse_residency(dense->second.residency_of(0)).residency == Residency::solved;
}

TimingPlan solve_timing(const Config& config, const Mesh& mesh) {
  require(config.memory_budget.has_value(), "residency \"auto\" comes with a budget");
  const Coordinates first = mesh.coordinates(0);
  const Program placed = place_step(config, program_tables(config, mesh, first));
  std::vector<std::int64_t> budgets;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    budgets.push_back(*config.memory_budget - held_by(config, mesh, rank).always);
  }
  const TimingProblem problem = timing_problem(placed, step_costs(config, mesh, first), budgets);

  SolveOptions options;
  options.pin_reductions = reduces_once(config);
  std::int64_t smallest = 0;
  int fullest = 0;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    const Held held = held_by(config, mesh, rank);
    const std::int64_t needed =
        held.always +
        std::max(held.update, smallest_budget(problem.ranks[static_cast<std::size_t>(rank)], options.pin_reductions));
    if (needed <= smallest) continue;
    smallest = needed;
    fullest = rank;
  }
  if (*config.memory_budget < smallest) {
    fail_request(
        "memory_budget {} bytes is too small for any timing of this step: pipeline rank {} holds {} all the time, and "
        "its largest action, or its update, takes {} more; the smallest budget that does is {} bytes",
        *config.memory_budget, fullest, held_by(config, mesh, fullest).always,
        smallest - held_by(config, mesh, fullest).always, smallest);
  }
  return solve_timing(problem, options).plan;
}

Program complete_solved(Program placed, const TimingPlan& plan) {
  return add_update(add_reduction(add_timing(std::move(placed), plan)));
}

}  // namespace weft
