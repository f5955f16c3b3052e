// The validator finds each kind of fault, and the two clocks agree.
#include "parallel/pipeline/timing/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "parallel/pipeline/timing/clock.h"
#include "parallel/pipeline/timing/solve.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/timing_faults.h"
#include "tests/parallel/timing_random.h"
#include "tests/parallel/timing_simulation.h"

namespace weft {
namespace {

// Two units: F0 F1 B1 B0, unit 0 gathered twice, unit 1 all the while. The budget has no byte to spare.
struct Example {
  TimingProblem problem;
  TimingPlan plan;
  bool pinned = true;
};

Example example() {
  Example made;
  TimingRank rank;
  rank.units = {{.parameter_bytes = 10, .gradient_bytes = 10, .gather_seconds = 1, .reduce_seconds = 1},
                {.parameter_bytes = 20, .gradient_bytes = 20, .gather_seconds = 2, .reduce_seconds = 2}};
  rank.read_units = {0, 1, 1, 0};
  rank.added_units = {1, 0};
  for (int q = 0; q < 4; ++q) {
    TimingOp op{.first_read = q,
                .reads = 1,
                .first_add = q - 2,
                .adds = q < 2 ? 0 : 1,
                .seconds = 1,
                .activation_bytes = q == 1 || q == 2 ? 2 : 1};
    if (q < 2) op.first_add = 0;
    rank.ops.push_back(op);
  }
  rank.budget = 42;
  made.problem.ranks = {rank};
  TimingRankPlan plan;
  plan.gathers = {{0, -1, 0, 0}, {1, -1, 1, 2}, {0, 2, 3, 3}};
  plan.reductions = {{1, 2, 2, 4}, {0, 3, 3, 4}};
  plan.channel = {{false, 0}, {false, 1}, {false, 2}, {true, 0}, {true, 1}};
  made.plan.ranks = {plan};
  return made;
}

TEST(TimingPlan, ReservesByHand) {
  const Example made = example();
  EXPECT_EQ(find_plan_faults(made.problem, made.plan, true), std::vector<std::string>{});
  // 1 + 10 + 20; 2 + 20; 2 + 20 + 20; 1 + 10 + 20 + 10.
  EXPECT_EQ(reserved_bytes(made.problem.ranks[0], made.plan.ranks[0]), (std::vector<std::int64_t>{31, 22, 42, 41}));
}

TEST(TimingPlan, FaultsAreFound) {
  struct Case {
    const char* words;
    std::function<void(Example&, TimingRankPlan&)> harm;
  };
  const Case cases[] = {
      {"a plan of 2 ranks for 1", [](Example& made, TimingRankPlan&) { made.plan.ranks.emplace_back(); }},
      {"positions out of order", [](Example&, TimingRankPlan& plan) { plan.gathers[1].after = 1; }},
      {"positions out of order", [](Example&, TimingRankPlan& plan) { plan.gathers[1].until = 4; }},
      {"positions out of order", [](Example&, TimingRankPlan& plan) { plan.gathers[1].unit = 2; }},
      {"positions out of order", [](Example&, TimingRankPlan& plan) { plan.reductions[0].wait = 2; }},
      {"positions out of order", [](Example&, TimingRankPlan& plan) { plan.reductions[0].wait = 5; }},
      {"op 2 reads unit 1 while it is sharded", [](Example&, TimingRankPlan& plan) { plan.gathers[1].until = 1; }},
      {"while it is there",
       [](Example&, TimingRankPlan& plan) {
         plan.gathers[2] = {0, -1, 3, 3};
       }},
      {"begins or ends an interval of unit 0 but does not read it",
       [](Example&, TimingRankPlan& plan) { plan.gathers[0].until = 1; }},
      {"op 3 adds to a gradient of unit 0 that is not there",
       [](Example&, TimingRankPlan& plan) {
         plan.reductions.pop_back();
         plan.channel.pop_back();
       }},
      {"begins or ends a gradient of unit 1 but does not add to it",
       [](Example&, TimingRankPlan& plan) { plan.reductions[0].first = 1; }},
      {"two gradients of unit 1 are filled at once",
       [](Example&, TimingRankPlan& plan) {
         plan.reductions.push_back({1, 2, 2, 4});
         plan.channel.push_back({true, 2});
       }},
      {"reduced more than once",
       [](Example&, TimingRankPlan& plan) {
         plan.reductions.push_back({1, 2, 2, 4});
         plan.channel.push_back({true, 2});
       }},
      {"the channel leaves out", [](Example&, TimingRankPlan& plan) { plan.channel.pop_back(); }},
      {"is not a collective, or one that was before",
       [](Example&, TimingRankPlan& plan) { plan.channel[1] = plan.channel[0]; }},
      {"needed by op 1 but waits for the end of op 2",
       [](Example&, TimingRankPlan& plan) { std::swap(plan.channel[1], plan.channel[2]); }},
      {"overtakes a reduction whose room it may take",
       [](Example&, TimingRankPlan& plan) { plan.reductions[0].wait = 3; }},
      {"op 2 has 42 bytes reserved, the budget is 41",
       [](Example& made, TimingRankPlan&) { --made.problem.ranks[0].budget; }},
      {"op 2 has 52 bytes reserved, the budget is 42",
       [](Example&, TimingRankPlan& plan) { plan.gathers[2].after = 1; }},
  };
  for (const Case& fault : cases) {
    Example made = example();
    fault.harm(made, made.plan.ranks[0]);
    std::string all;
    for (const std::string& found : find_plan_faults(made.problem, made.plan, true)) all += found + "\n";
    EXPECT_NE(all.find(fault.words), std::string::npos) << "expected: " << fault.words << "\nfound: " << all;
  }
}

// F0 waits for its gather, F1 for the longer one; the last runs behind B1, when there is room for it.
TEST(TimingPlan, RunsByHand) {
  const Example made = example();
  const SimulatedTiming timing = simulate_timing(made.problem, made.plan);
  const SimulatedRank& rank = timing.ranks[0];
  EXPECT_EQ(rank.ops, (std::vector<TimeSpan>{{1, 2}, {3, 4}, {4, 5}, {6, 7}}));
  EXPECT_EQ(rank.channel, (std::vector<TimeSpan>{{0, 1}, {1, 3}, {5, 6}, {6, 8}, {8, 9}}));
  EXPECT_EQ(timing.makespan, 9);
  EXPECT_EQ(rank.peak_bytes, 42);
  // With a channel of their own reductions do not wait for the gather.
  EXPECT_EQ(simulate_timing(made.problem, made.plan, {.two_channels = true}).makespan, 8);
}

TEST(TimingPlan, StandingStillIsAnError) {
  Example made = example();
  std::swap(made.plan.ranks[0].channel[1], made.plan.ranks[0].channel[2]);
  EXPECT_THROW(simulate_timing(made.problem, made.plan), Error);
  made = example();
  made.problem.ranks[0].ops[1].producer_rank = 0;
  made.problem.ranks[0].ops[1].producer_op = 2;
  EXPECT_THROW(TimingClock{made.problem}, Error);
}

// Two ranks that hand each other their ops: the clock of the search against the careful one.
TEST(TimingPlan, BothClocksAgree) {
  std::mt19937 random(40);
  for (int i = 0; i < 100; ++i) {
    TimingProblem problem = random_timing(random, {.large_parameters = i % 2 == 0, .least_ops = 12, .most_ops = 12});
    problem.ranks.push_back(random_timing(random, {.least_ops = 12, .most_ops = 12}).ranks[0]);
    for (int q = 0; q < 12; ++q) {
      TimingOp& op = problem.ranks[static_cast<std::size_t>(q % 2)].ops[static_cast<std::size_t>(q)];
      op.transfer_seconds = 0.25;
      if (q > 0) op.producer_rank = 1 - q % 2, op.producer_op = q - 1;
    }
    const TimingPlan plan = solve_timing(problem, {.work = 5000}).plan;
    const TimingClock clock(problem);
    std::vector<TimingChannel> channels;
    for (std::size_t r = 0; r < 2; ++r) channels.push_back(timing_channel(problem.ranks[r], plan.ranks[r]));
    std::vector<double> ends(24), rank_ends(2);
    const SimulatedTiming timing = simulate_timing(problem, plan);
    EXPECT_EQ(clock.run(channels, ends, rank_ends), timing.makespan);
    for (std::size_t q = 0; q < 24; ++q) EXPECT_EQ(ends[q], timing.ranks[q / 12].ops[q % 12].end);
  }
}

}  // namespace
}  // namespace weft
