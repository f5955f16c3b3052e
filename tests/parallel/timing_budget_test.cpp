// No rank exceeds its budget, whatever the times, and what cannot fit is refused.
#include <gtest/gtest.h>

#include <random>

#include "parallel/pipeline/timing/solve.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/timing_faults.h"
#include "tests/parallel/timing_random.h"
#include "tests/parallel/timing_simulation.h"
#include "tools/bench/timing_cases.h"

namespace weft {
namespace {

std::vector<TimingFactors> jittered(std::mt19937& random, const TimingPlan& plan, const TimingProblem& problem) {
  std::uniform_real_distribution<double> op(0.7, 1.4), collective(0.7, 1.5);
  std::vector<TimingFactors> factors(plan.ranks.size());
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (std::size_t i = 0; i < problem.ranks[r].ops.size(); ++i) factors[r].ops.push_back(op(random));
    for (std::size_t i = 0; i < plan.ranks[r].channel.size(); ++i) factors[r].channel.push_back(collective(random));
  }
  return factors;
}

std::vector<TimingProblem> problems() {
  std::vector<TimingProblem> all;
  const std::vector<TimingCase> grid = timing_grid();
  for (std::size_t i = 0; i < grid.size(); i += 20) all.push_back(timing_problem(grid[i]));
  std::mt19937 random(30);
  for (int i = 0; i < 40; ++i) {
    all.push_back(random_timing(random, {.large_parameters = i % 2 == 0, .least_ops = 10, .most_ops = 40}));
  }
  return all;
}

// 57 problems x 18 runs. A peak near the budget shows that there is something to exceed.
TEST(TimingBudget, HoldsInAThousandRunsWithOtherTimes) {
  std::mt19937 random(31);
  int runs = 0, close = 0;
  for (const TimingProblem& problem : problems()) {
    const TimingPlan plan = solve_timing(problem, {.work = 300'000}).plan;
    for (int i = 0; i < 18; ++i, ++runs) {
      const SimulatedTiming timing =
          simulate_timing(problem, plan, {.two_channels = i % 3 == 0, .factors = jittered(random, plan, problem)});
      for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
        EXPECT_LE(timing.ranks[r].peak_bytes, problem.ranks[r].budget);
        if (timing.ranks[r].peak_bytes * 10 >= problem.ranks[r].budget * 9) ++close;
      }
    }
  }
  EXPECT_GE(runs, 1000);
  EXPECT_GE(close, 1000);
}

// The same plans, made for three quarters more than there is: so the runs above could have found something.
TEST(TimingBudget, IsExceededByPlansForALargerOne) {
  int exceeded = 0;
  for (const TimingProblem& problem : problems()) {
    TimingProblem larger = problem;
    for (TimingRank& rank : larger.ranks) rank.budget = rank.budget * 7 / 4;
    const SimulatedTiming timing = simulate_timing(problem, solve_timing(larger, {.work = 300'000}).plan);
    for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
      exceeded += timing.ranks[r].peak_bytes > problem.ranks[r].budget;
    }
  }
  EXPECT_GE(exceeded, 20);
}

TEST(TimingBudget, SolvesAtTheSmallestAndRefusesLess) {
  std::mt19937 random(32);
  for (int i = 0; i < 100; ++i) {
    const bool pinned = i % 2 == 1;
    TimingProblem problem = random_timing(random, {.large_parameters = i % 3 == 0});
    TimingRank& rank = problem.ranks[0];
    rank.budget = smallest_budget(rank, pinned);
    const SolveOptions options{.pin_reductions = pinned, .work = 20'000};
    EXPECT_EQ(find_plan_faults(problem, solve_timing(problem, options).plan, pinned), std::vector<std::string>{});
    const std::string smallest = std::to_string(rank.budget--);
    try {
      solve_timing(problem, options);
      ADD_FAILURE() << "fits in a byte less than " << smallest;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      EXPECT_NE(std::string(error.what()).find("the smallest budget that fits every rank is " + smallest + " bytes"),
                std::string::npos)
          << error.what();
    }
  }
}

// By hand: an op of 5 bytes that reads 10 and adds to 20 beside one that reads another 30. While gradients are pinned
// the 20 stay between their two adds.
TEST(TimingBudget, SmallestIsWhatTheWorstOpNeeds) {
  TimingRank rank;
  rank.units = {{.parameter_bytes = 10, .gradient_bytes = 20}, {.parameter_bytes = 30}};
  rank.read_units = {0, 1, 0};
  rank.added_units = {0, 1, 0};
  for (int q = 0; q < 3; ++q) {
    rank.ops.push_back(
        {.first_read = q, .reads = 1, .first_add = q, .adds = 1, .seconds = 1, .activation_bytes = q == 0 ? 5 : 1});
  }
  EXPECT_EQ(smallest_budget(rank, false), 35);          // op 0; the second unit is frozen
  EXPECT_EQ(smallest_budget(rank, true), 1 + 30 + 20);  // op 1
}

}  // namespace
}  // namespace weft
