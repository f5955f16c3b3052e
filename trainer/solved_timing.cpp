#include "trainer/solved_timing.h"

#include <algorithm>

#include "parallel/pipeline/passes.h"
#include "parallel/pipeline/timing/solve.h"
#include "parallel/runtime/error.h"
#include "trainer/costs/hardware.h"
#include "trainer/costs/step_costs.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/pipeline_order.h"
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

// By pipeline rank.
std::vector<Held> held_by_ranks(const Config& config, const Mesh& mesh) {
  std::vector<Held> held;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    const Coordinates at = mesh.coordinates(mesh.rank_at(rank, 0, 0, 0, 0));
    held.push_back({static_bytes(plan_stages(config, mesh, at)).total(), update_bytes(config, mesh, at).total()});
  }
  return held;
}

// Where the layout was dealt under the budget too (automatic_layout.h), and more than one could have been.
std::string dealt_for_least_memory(const Config& config) {
  const auto* layout = std::get_if<std::string>(&config.pipeline.layout);
  const bool dealt =
      layout && *layout == "auto" && !config.pipeline.first_stage_blocks && !config.pipeline.last_stage_blocks;
  if (!dealt || config.stages() == 1) return {};
  return fmt::format(", with the layout that takes least, {}", to_string(stage_layout(config), config.model));
}

void require_budget(const Config& config, const std::vector<Held>& held, const TimingProblem& problem, bool once) {
  const std::int64_t budget = *config.memory_budget;
  std::size_t fullest = 0;
  std::int64_t smallest = 0;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    const std::int64_t step = std::max(held[rank].update, smallest_budget(problem.ranks[rank], once));
    if (held[rank].always + step <= smallest) continue;
    smallest = held[rank].always + step;
    fullest = rank;
  }
  if (budget >= smallest) return;
  fail_request(
      "memory_budget {} bytes is too small for any timing of this step: pipeline rank {} holds {} all the time, and "
      "its largest action, or its update, takes {} more; the smallest budget that does is {} bytes{}",
      budget, fullest, held[fullest].always, smallest - held[fullest].always, smallest, dealt_for_least_memory(config));
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
  const std::vector<Held> held = held_by_ranks(config, mesh);
  std::vector<std::int64_t> budgets;
  for (const Held& rank : held) budgets.push_back(*config.memory_budget - rank.always);
  const TimingProblem problem = timing_problem(placed, step_costs(config, mesh, first), budgets);
  SolveOptions options;
  options.pin_reductions = reduces_once(config);
  require_budget(config, held, problem, options.pin_reductions);
  return solve_timing(problem, options).plan;
}

Program complete_solved(Program placed, const TimingPlan& plan) {
  return add_update(add_reduction(add_timing(std::move(placed), plan)));
}

}  // namespace weft
