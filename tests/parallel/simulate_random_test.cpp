// The simulator on programs drawn at random: against a slow second opinion, and what holds of any program.
#include <gtest/gtest.h>

#include "parallel/pipeline/check/check.h"
#include "tests/parallel/lane_channels.h"
#include "tests/parallel/random_program.h"
#include "tests/parallel/simulate_oracle.h"

namespace weft {
namespace {

const std::pair<const char*, LaneChannels> all_channels[] = {
    {"own", LaneChannels::own()}, {"shared", shared_collectives()}, {"serial", LaneChannels::serial()}};

// An action starts, to the bit, at the end of the action that it names as its cause. A chain of causes leads to the
// begin of the step. Rows may arrive after the start, by as much as the action computes without them.
void expect_causes(const Program& program, const ProgramCosts& costs, const Simulation& simulation) {
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < simulation.ranks[rank].size(); ++i) {
      const SimulatedAction& action = simulation.ranks[rank][i];
      double caused =
          action.after ? simulation.ranks[static_cast<std::size_t>(action.after->rank)][action.after->index].end : 0.0;
      if (action.wait == Wait::rows) caused -= seconds_before_rows(costs, program.ranks[rank][i]);
      ASSERT_EQ(action.start, caused) << "rank " << rank << ", " << format_action(program, program.ranks[rank][i]);
      EXPECT_GE(action.waited, action.for_collectives);
      if (is_reshard(program.ranks[rank][i].op)) continue;  // takes no turn on its channel
      EXPECT_EQ(action.waited > 0.0, action.wait != Wait::nothing);
    }
  }
  const auto path = critical_path(simulation);
  ASSERT_FALSE(path.empty());
  const auto at = [&](const ActionAt& place) {
    return simulation.ranks[static_cast<std::size_t>(place.rank)][place.index];
  };
  EXPECT_EQ(at(path.front()).start, 0.0);
  EXPECT_EQ(at(path.back()).end, simulation.seconds);
  for (std::size_t i = 1; i < path.size(); ++i) {
    if (at(path[i]).wait == Wait::rows) continue;
    EXPECT_EQ(at(path[i]).start, at(path[i - 1]).end);
  }
}

TEST(SimulateRandom, EqualsTheLeastSolutionOfItsRules) {
  std::size_t rules = 0;
  std::array<int, all_values<Wait>.size()> waits = {};
  for (int seed = 0; seed < 250; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed));
    const Program program = random_program(dice);
    ASSERT_TRUE(find_violations(program).empty()) << seed;
    const ProgramCosts costs = random_costs(dice, program, dice.between(1, 30));
    for (const auto& [name, channels] : all_channels) {
      const SimulationOracle oracle(program, costs, channels);
      const Simulation simulation = simulate(program, costs, channels);
      rules += oracle.rules();
      double seconds = 0.0;
      for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
        for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
          const SimulatedAction& action = simulation.ranks[rank][i];
          ASSERT_EQ(action.start, oracle.start(rank, i)) << "seed " << seed << ", " << name << ", rank " << rank << ", "
                                                         << format_action(program, program.ranks[rank][i]);
          ASSERT_EQ(action.end, oracle.end(rank, i));
          seconds = std::max(seconds, oracle.end(rank, i));
          ++waits[static_cast<std::size_t>(action.wait)];
        }
      }
      EXPECT_EQ(simulation.seconds, seconds);
      expect_causes(program, costs, simulation);
    }
  }
  EXPECT_GT(rules, 1000000u);
  for (const int count : waits) EXPECT_GT(count, 400);  // every kind of wait was met
}

// Orders alone, where data goes from stage to stage without messages.
TEST(SimulateRandom, OrdersAloneEqualTheLeastSolutionToo) {
  for (int seed = 0; seed < 200; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed));
    const Schedule& schedule = schedules()[static_cast<std::size_t>(seed) % schedules().size()];
    const Program program = ordered(schedule, random_input(dice, schedule, 5, 12));
    const ProgramCosts costs = random_costs(dice, program);
    const auto channels = LaneChannels::own();
    const SimulationOracle oracle(program, costs, channels);
    const Simulation simulation = simulate(program, costs);
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
        ASSERT_EQ(simulation.ranks[rank][i].start, oracle.start(rank, i)) << schedule.name << ", seed " << seed;
      }
    }
    expect_causes(program, costs, simulation);
  }
}

// Every start is the largest of sums of costs, so nothing that takes less time lets anything end later. (A scheduler
// that reorders has no such property; the lists are fixed.)
TEST(SimulateRandom, WhatCostsLessEndsNothingLater) {
  int sooner = 0;
  for (int seed = 0; seed < 200; ++seed) {
    Dice dice(static_cast<std::uint64_t>(1000 + seed));
    const Program program = random_program(dice);
    const ProgramCosts costs = random_costs(dice, program, dice.between(1, 30));
    ProgramCosts less = costs;
    const auto lower = [&](double& seconds) {
      seconds = dice.one_in(2) ? seconds : dice.below(static_cast<int>(seconds) + 1);
    };
    for (ComputeCost& cost : less.segments) {
      for (double* seconds : {&cost.forward, &cost.backward_input, &cost.backward_weight}) lower(*seconds);
    }
    for (UnitCost& cost : less.units) {
      for (double* seconds : {&cost.gather, &cost.island_gather, &cost.scatter, &cost.reduce}) lower(*seconds);
    }
    for (double& seconds : less.transfers) lower(seconds);
    lower(less.gradient_norm);
    for (const auto& [name, channels] : all_channels) {
      const Simulation before = simulate(program, costs, channels), after = simulate(program, less, channels);
      if (after.seconds < before.seconds) ++sooner;
      for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
        for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
          ASSERT_LE(after.ranks[rank][i].start, before.ranks[rank][i].start) << "seed " << seed << ", " << name;
          ASSERT_LE(after.ranks[rank][i].end, before.ranks[rank][i].end) << "seed " << seed << ", " << name;
        }
      }
    }
  }
  EXPECT_GT(sooner, 300);
}

// Lanes of their own are never slower than shared ones, and both are never slower than one after the other.
TEST(SimulateRandom, MoreChannelsAreNeverSlower) {
  for (int seed = 0; seed < 200; ++seed) {
    Dice dice(static_cast<std::uint64_t>(2000 + seed));
    const Program program = random_program(dice);
    const ProgramCosts costs = random_costs(dice, program, dice.between(1, 30), 0);
    const double own = simulate(program, costs).seconds;
    const double shared = simulate(program, costs, shared_collectives()).seconds;
    EXPECT_LE(own, shared);
    EXPECT_LE(shared, simulate(program, costs, LaneChannels::serial()).seconds);
  }
}

// The parts of a rank's step, counted anew along its compute channel: what it does, and the gaps between.
TEST(SimulateRandom, TimesOfARankAddUpToTheStep) {
  for (int seed = 0; seed < 200; ++seed) {
    Dice dice(static_cast<std::uint64_t>(3000 + seed));
    const Program program = random_program(dice);
    const ProgramCosts costs = random_costs(dice, program, dice.between(1, 30));
    const Simulation simulation = simulate(program, costs);
    for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
      const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
      double at = 0.0, idle_for_messages = 0.0, idle_for_collectives = 0.0, compute = 0.0, update = 0.0;
      for (std::size_t i = 0; i < actions.size(); ++i) {
        const SimulatedAction& action = simulation.ranks[static_cast<std::size_t>(rank)][i];
        if (lane_of(program, actions[i]) != Lane::compute) continue;
        (is_compute(actions[i].op) ? compute : update) += action.end - action.start;
        idle_for_collectives += action.for_collectives;
        idle_for_messages += action.start - at - action.for_collectives;
        at = action.end;
      }
      const RankTimes times = rank_times(program, simulation, rank);
      EXPECT_EQ(times.compute, compute);
      EXPECT_EQ(times.update, update);
      EXPECT_EQ(times.gathers + times.reductions + times.rows + times.host, idle_for_collectives);
      EXPECT_EQ(times.bubble, idle_for_messages + simulation.seconds - at);
    }
  }
}

}  // namespace
}  // namespace weft
