// A pipeline whose gathers and reductions take twice as long as a forward. An earlier simulator of the same model, in
// Python, gave the times of fixed policies, which are to be met. The result of its solver is to be reached.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/pipeline/timing/fixed.h"
#include "parallel/pipeline/timing/solve.h"
#include "tests/parallel/timing_faults.h"
#include "tests/parallel/timing_simulation.h"
#include "tools/bench/timing_cases.h"

namespace weft {
namespace {

using Kept = FixedPolicy::Residency;
using Reduction = FixedPolicy::Reduction;

struct KnownRow {
  std::string_view schedule;
  int chunks = 1, microbatches = 8;
  double compute = 0;        // the step without collectives
  double reached[5] = {};    // time beyond that with budgets of 8, 10, 12, 14 and 17 units
  double each_use_peak = 0;  // of gathering and reducing at every use, in units; 0: not known
  double each_use = 0;       // time beyond
};

constexpr KnownRow known_rows[] = {
    {"1f1b", 1, 8, 264, {127, 72, 11, 11, 11}, 7.1, 218},
    {"1f1b", 1, 16, 456, {263, 154, 11, 11, 11}, 7.1, 386},
    {"1f1b", 1, 32, 840, {535, 314, 11, 11, 11}, 7.1, 722},
    {"interleaved", 2, 8, 228, {147, 58, 14, 7, 7}, 8.3, 176},
    {"interleaved", 2, 16, 420, {382, 141, 47, 7, 7}, 8.3, 354},
    {"interleaved", 2, 32, 804, {837, 315, 156, 7, 7}, 8.3, 722},
    {"interleaved", 4, 16, 402, {195, 15, 5, 5, 5}, 7.7, 362},
    {"zbv", 2, 8, 204, {111, 71, 41, 10, 10}},
    {"zbv", 2, 16, 396, {239, 177, 105, 10, 10}},
    {"zbv", 2, 32, 780, {495, 369, 233, 10, 10}},
};

// Units of parameters and gradients are 10 bytes, activations of a unit and microbatch 1.
TimingProblem problem_of(const KnownRow& row, std::int64_t budget) {
  return timing_problem({.schedule = row.schedule, .input = {4, row.chunks, row.microbatches}, .budget = budget});
}

double peak_units(const SimulatedTiming& timing) {
  std::int64_t peak = 0;
  for (const SimulatedRank& rank : timing.ranks) peak = std::max(peak, rank.peak_bytes);
  return static_cast<double>(peak) / 10;
}

TEST(TimingKnown, FixedPoliciesTakeAsLongAsTheyDidElsewhere) {
  for (const KnownRow& row : known_rows) {
    const TimingProblem problem = problem_of(row, 10'000);
    TimingProblem compute = problem;
    for (TimingRank& rank : compute.ranks) {
      for (TimingUnit& unit : rank.units) unit.gather_seconds = unit.reduce_seconds = 0;
    }
    const FixedPolicy keep{Kept::step, 0, 4, Reduction::step, -1};
    EXPECT_EQ(simulate_timing(compute, *fixed_plan(compute, keep)).makespan, row.compute) << row.schedule;
    if (row.each_use_peak == 0) continue;
    const FixedPolicy each_use{Kept::each_use, 0, 1, Reduction::each_use, -1};
    const SimulatedTiming timing = simulate_timing(problem, *fixed_plan(problem, each_use));
    EXPECT_EQ(timing.makespan - row.compute, row.each_use) << row.schedule << " " << row.microbatches;
    EXPECT_DOUBLE_EQ(peak_units(timing), row.each_use_peak) << row.schedule << " " << row.microbatches;
  }
}

// 1F1B keeps all in 19.2 units and waits for nothing but the first gathers and the last reductions: 11.
TEST(TimingKnown, KeepingEverythingTakesTheBound) {
  for (const int microbatches : {8, 16, 32}) {
    const TimingProblem problem = problem_of({"1f1b", 1, microbatches}, 192);
    const SimulatedTiming timing =
        simulate_timing(problem, *fixed_plan(problem, {Kept::step, 0, 4, Reduction::step, -1}));
    EXPECT_EQ(timing.makespan, 24.0 * (microbatches + 3) + 11);
    EXPECT_DOUBLE_EQ(peak_units(timing), 19.2);
    EXPECT_EQ(solve_timing(problem).lower_bound, timing.makespan);
  }
}

TEST(TimingKnown, WaitsNoLongerThanTheEarlierSolver) {
  constexpr std::int64_t budgets[] = {80, 100, 120, 140, 170};
  double before = 0, now = 0;
  for (const KnownRow& row : known_rows) {
    for (std::size_t i = 0; i < std::size(budgets); ++i) {
      const TimingProblem problem = problem_of(row, budgets[i]);
      const TimingSolution solution = solve_timing(problem, {.work = 3'000'000, .fixed_policies = false});
      const SimulatedTiming timing = simulate_timing(problem, solution.plan);
      EXPECT_EQ(find_plan_faults(problem, solution.plan, false), std::vector<std::string>{});
      EXPECT_LE(timing.makespan - row.compute, row.reached[i])
          << row.schedule << ", " << row.microbatches << " microbatches, budget " << budgets[i];
      EXPECT_LE(peak_units(timing), static_cast<double>(budgets[i]) / 10);
      before += row.reached[i];
      now += timing.makespan - row.compute;
    }
  }
  EXPECT_LE(now, 0.85 * before);
  // What no plan can be better than takes 19.2 units if all is kept, and 12 if it is chosen.
  EXPECT_EQ(solve_timing(problem_of(known_rows[1], 120)).makespan - known_rows[1].compute, 11);
}

}  // namespace
}  // namespace weft
