#include "trainer/resolve/solved_timing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/timing/fixed.h"
#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/solve.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/costs/hardware.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/step_costs.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

// Bytes that a rank holds all the time, and the most in its update, where no unit is gathered or accumulates.
struct Held {
  std::int64_t always = 0, update = 0;
};

constexpr int most_attempts = 4;

TimingPlan with_everything_kept(TimingProblem problem) {
  for (TimingRank& rank : problem.ranks) rank.budget = std::numeric_limits<std::int64_t>::max() / 2;
  const FixedPolicy everything{.residency = FixedPolicy::Residency::step,
                               .lookahead = 0,
                               .reduction = FixedPolicy::Reduction::step,
                               .outstanding = -1};
  auto plan = fixed_plan(problem, everything);
  require(plan.has_value(), "everything can be kept where memory has no end");
  return *std::move(plan);
}

bool ends_step(Op op) {
  return op == Op::tie_gradient || op == Op::gradient_norm || op == Op::optimizer_step;
}

// Replaces the bytes that segments declare by those that a dry run (dry_run.h) finds beside units, while each op runs
// and until the next begins. They are activations, tensors between segments and stages, and workspace. None depends on
// the plan. Keeps the most of all ranks that it is called for.
void count_beside_units(const DryRun& dry, const Program& program, int rank, TimingRank& timed, Held& held) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  held.always = std::max(held.always, dry.walk.before.total());
  const auto count = [&](std::size_t op, std::int64_t bytes) {
    if (op >= timed.ops.size()) return;
    timed.ops[op].activation_bytes = std::max(timed.ops[op].activation_bytes, bytes);
  };
  // Accumulators of replicated units stay from the first backward to the update.
  std::int64_t replicated = 0;
  for (const ProgramUnit& unit : program.units) {
    const bool here = program.stages[static_cast<std::size_t>(unit.stage)].rank == rank;
    if (here && unit.replicated) replicated += unit.gradient_bytes;
  }
  std::size_t next = 0;  // index of the op
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::int64_t beside = dry.beside_units[i] - dry.walk.before.total() + replicated;
    if (is_compute(actions[i].op) && actions[i].segment) {
      count(next++, beside);
    } else if (ends_step(actions[i].op)) {
      held.update = std::max(held.update, beside);
    } else {
      // A gather may be issued before this action or behind it.
      if (next > 0) count(next - 1, beside);
      count(next, beside);
    }
  }
  require(next == timed.ops.size(), "a plan adds no computation");
}
// The step by rows of the vocabulary, as ranks with equal shares have one program.
using ProgramsByRows = std::map<std::int64_t, Program>;

ProgramsByRows add_solved_sharding(const ProgramsByRows& placed, const TimingPlan& plan) {
  ProgramsByRows programs;
  for (const auto& [rows, program] : placed) programs.emplace(rows, add_solved_sharding(program, plan));
  return programs;
}

// The same of all classes of ranks at a pipeline position.
Held count_beside_units(const Config& config, const Mesh& mesh, std::span<const RankClass> classes,
                        const ProgramsByRows& programs, int rank, TimingRank& timed) {
  Held held;
  for (TimingOp& op : timed.ops) op.activation_bytes = 0;
  for (const RankClass& each : classes) {
    if (each.at.pp != rank) continue;
    const Program& program = programs.at(vocabulary_rows(config, each.at));
    count_beside_units(dry_run(config, mesh, program, each.first), program, rank, timed, held);
  }
  return held;
}

// Bytes above the budget of the rank that exceeds it most, by a dry run of each class of ranks; 0 if all keep it.
// Subtracts each rank's excess from its budget in `problem`.
std::int64_t tighten(const Config& config, const Mesh& mesh, std::span<const RankClass> classes,
                     const ProgramsByRows& programs, TimingProblem& problem) {
  std::vector<std::int64_t> above(problem.ranks.size());
  for (const RankClass& each : classes) {
    const Program& program = programs.at(vocabulary_rows(config, each.at));
    const std::int64_t peak = dry_run(config, mesh, program, each.first).peak.total();
    std::int64_t& most = above[static_cast<std::size_t>(each.at.pp)];
    most = std::max(most, peak - *config.memory_budget);
  }
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < above.size(); ++rank) {
    problem.ranks[rank].budget -= above[rank];
    most = std::max(most, above[rank]);
  }
  return most;
}

// The smallest budget with a timing, and why; without the plan.
SolvedTiming least_budget(std::int64_t budget, const std::vector<Held>& held, const TimingProblem& problem, bool once) {
  SolvedTiming least;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    const std::int64_t step = std::max(held[rank].update, smallest_budget(problem.ranks[rank], once));
    // The excess that a dry run found is needed as well.
    const std::int64_t above = budget - held[rank].always - problem.ranks[rank].budget;
    const std::int64_t bytes = held[rank].always + above + step;
    if (bytes <= least.smallest_budget) continue;
    least = {std::nullopt, bytes,
             fmt::format("pipeline rank {} holds {} all the time, and its largest action, or its update, takes {} "
                         "more",
                         rank, format_bytes(held[rank].always), format_bytes(above + step))};
  }
  return least;
}

}  // namespace

SolvedTiming solve_timing(const Config& config, const Mesh& mesh, const std::vector<StageBlocks>& layout) {
  require(config.memory_budget.has_value(), "residency \"auto\" comes with a budget");
  const std::int64_t budget = *config.memory_budget;
  const std::vector<RankClass> classes = rank_classes(config, mesh);
  ProgramsByRows all_placed;
  for (const RankClass& each : classes) {
    const std::int64_t rows = vocabulary_rows(config, each.at);
    if (all_placed.contains(rows)) continue;
    all_placed.emplace(rows, lower_step(config, program_tables(config, mesh, each.at, layout)));
  }
  const Program& placed = all_placed.at(vocabulary_rows(config, mesh.coordinates(0)));
  const std::vector<std::int64_t> none(placed.ranks.size());
  TimingProblem problem = timing_problem(placed, step_costs(config, mesh, placed, hardware_of(config)), none);
  const ProgramsByRows kept = add_solved_sharding(all_placed, with_everything_kept(problem));
  std::vector<Held> held;
  for (std::size_t rank = 0; rank < problem.ranks.size(); ++rank) {
    TimingRank& timed = problem.ranks[rank];
    held.push_back(count_beside_units(config, mesh, classes, kept, static_cast<int>(rank), timed));
    timed.budget = budget - held.back().always;
  }
  SolveOptions options;
  // All families have one reduction (solved_step_faults).
  options.pin_reductions = config.shard_by_family.at(Family::dense).reduction.kind != ReductionKind::by_strategy;
  // The solver bounds the bytes that a plan holds at its positions. Only a dry run shows whether anything else is held.
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    SolvedTiming least = least_budget(budget, held, problem, options.pin_reductions);
    if (least.smallest_budget > budget) return least;
    TimingPlan plan = solve_timing(problem, options).plan;
    if (tighten(config, mesh, classes, add_solved_sharding(all_placed, plan), problem) == 0) {
      return {std::move(plan), least.smallest_budget, {}};
    }
  }
  fail("no timing was found in {} attempts that keeps memory_budget {} bytes", most_attempts, budget);
}

Program add_solved_sharding(Program placed, const TimingPlan& plan) {
  return add_offload(add_update(add_ties(add_reduction(add_timing(std::move(placed), plan)))));
}

}  // namespace weft
