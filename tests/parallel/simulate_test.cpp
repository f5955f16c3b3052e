// The simulator on programs small enough to know every second.
#include "parallel/pipeline/simulation/simulate.h"

#include <gtest/gtest.h>

#include <chrono>

#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/lane_channels.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/unit_timeline.h"

namespace weft {
namespace {

// One rank with one stage of `segments` segments, segment i with unit i. A forward takes 2 seconds, an input gradient
// 3, a weight gradient 4; a gather 10, a reduction 20.
struct OneRank {
  explicit OneRank(int segments) {
    program.microbatches = 2;
    static_cast<ProgramTables&>(program) = stage_tables(1, segments);
    for (ProgramUnit& unit : program.units) unit.gradient_bytes = 4;
    program.ranks.resize(1);
    costs = even_costs(program);
    for (ComputeCost& cost : costs.segments) cost = {2.0, 3.0, 4.0};
    for (UnitCost& cost : costs.units) cost = {.gather = 10.0, .island_gather = 5.0, .scatter = 15.0, .reduce = 20.0};
  }

  OneRank& compute(Op op, int segment, int microbatch = 0) {
    return add({.op = op, .stage = 0, .microbatch = microbatch, .segment = segment});
  }
  OneRank& unit(Op op, int unit) { return add({.op = op, .stage = 0, .unit = unit}); }
  OneRank& add(const Action& action) {
    program.ranks[0].push_back(action);
    return *this;
  }

  Simulation simulated(const LaneChannels& channels = LaneChannels::own()) const {
    return simulate(program, costs, channels);
  }

  Program program;
  ProgramCosts costs;
};

std::optional<ActionAt> own(std::size_t index) {
  return ActionAt{0, index};
}

// Start, end, waited, wait, after, for collectives.
void expect(const Simulation& simulation, int rank, const std::vector<SimulatedAction>& expected) {
  const auto& actions = simulation.ranks[static_cast<std::size_t>(rank)];
  ASSERT_EQ(actions.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const SimulatedAction &is = actions[i], &should = expected[i];
    EXPECT_EQ(is, should) << "rank " << rank << ", action " << i << ": " << is.start << " to " << is.end << ", waited "
                          << is.waited << " (" << is.for_collectives << ") for " << name_of(is.wait) << " of "
                          << (is.after ? fmt::format("{}.{}", is.after->rank, is.after->index) : "nobody");
  }
}

// The first gather is late for its forward, the second is hidden behind nothing either: it had to wait its turn.
TEST(Simulate, ComputeWaitsForTheGathersOfItsUnits) {
  OneRank rank(2);
  rank.unit(Op::unshard, 0).unit(Op::unshard, 1).compute(Op::forward, 0).compute(Op::forward, 1);
  expect(rank.simulated(), 0,
         {{0, 10, 0, Wait::nothing, {}},
          {10, 20, 0, Wait::nothing, own(0)},
          {10, 12, 10, Wait::gather, own(0), 10},
          {20, 22, 8, Wait::gather, own(1), 8}});
  const RankTimes times = rank_times(rank.program, rank.simulated(), 0);
  EXPECT_EQ(times.compute, 4.0);
  EXPECT_EQ(times.gathers, 18.0);
  EXPECT_EQ(times.bubble, 0.0);
  EXPECT_EQ(critical_path(rank.simulated()), (std::vector<ActionAt>{{0, 0}, {0, 1}, {0, 3}}));
}

// A weight gradient reads no parameters, and an input gradient only where its segment says so.
TEST(Simulate, WhatReadsNoWeightsWaitsForNoGather) {
  OneRank rank(2);
  rank.program.segments[0].reads_weights_backward = false;
  rank.compute(Op::forward, 0).compute(Op::forward, 1);
  rank.unit(Op::unshard, 0).unit(Op::unshard, 1);
  rank.compute(Op::backward_input, 1).compute(Op::backward_weight, 1).compute(Op::backward_input, 0);
  expect(rank.simulated(), 0,
         {{0, 2, 0, Wait::nothing, {}},
          {2, 4, 0, Wait::nothing, own(0)},
          {0, 10, 0, Wait::nothing, {}},
          {10, 20, 0, Wait::nothing, own(2)},
          {20, 23, 16, Wait::gather, own(3), 16},
          {23, 27, 0, Wait::nothing, own(4)},
          {27, 30, 0, Wait::nothing, own(5)}});
}

// A rank that computes on its own shard gathers nothing: no time, and nobody waits.
TEST(Simulate, AUnitThatIsNotShardedIsNotWaitedFor) {
  OneRank rank(2);
  rank.program.units[1].unsharded_bytes = 0;
  rank.unit(Op::unshard, 0).unit(Op::unshard, 1).compute(Op::forward, 1);
  rank.unit(Op::reshard, 1).unit(Op::unshard, 1);
  expect(rank.simulated(), 0,
         {{0, 10, 0, Wait::nothing, {}},
          {10, 10, 0, Wait::nothing, own(0)},
          {0, 2, 0, Wait::nothing, {}},
          {2, 2, 0, Wait::compute, own(2)},
          {10, 10, 0, Wait::nothing, own(1)}});
}

// The second gather takes the room of the first unit, which a RESHARD gives back once compute has read it. The third
// stands behind the same RESHARD and waits for its turn only.
TEST(Simulate, AGatherWaitsForTheRoomOfAReshardBeforeIt) {
  OneRank rank(3);
  rank.costs.segments[0].forward = 30.0;
  rank.unit(Op::unshard, 0).compute(Op::forward, 0).unit(Op::reshard, 0);
  rank.unit(Op::unshard, 1).unit(Op::unshard, 2).compute(Op::forward, 1);
  expect(rank.simulated(), 0,
         {{0, 10, 0, Wait::nothing, {}},
          {10, 40, 10, Wait::gather, own(0), 10},
          {40, 40, 30, Wait::compute, own(1)},
          {40, 50, 30, Wait::room, own(2)},
          {50, 60, 0, Wait::nothing, own(3)},
          {50, 52, 10, Wait::gather, own(3), 10}});
  EXPECT_EQ(critical_path(rank.simulated()), (std::vector<ActionAt>{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}}));
}

// Three units, each reduced as soon as its gradient is there. One input may be in flight beside the accumulator that
// is filled. So the third accumulator waits for the first reduction, while the second had room.
TEST(Simulate, AnAccumulatorWaitsForTheReductionThatThePoolHasGivenUp) {
  OneRank rank(3);
  for (int unit : {2, 1, 0}) rank.compute(Op::backward_weight, unit).unit(Op::reduce_gradient, unit);
  rank.program.reduce_inputs = 1;
  rank.add({.op = Op::gradient_norm}).add({.op = Op::optimizer_step});
  rank.costs.gradient_norm = 1.0;
  rank.costs.optimizer_step = 5.0;
  expect(rank.simulated(), 0,
         {{0, 4, 0, Wait::nothing, {}},
          {4, 24, 4, Wait::compute, own(0)},
          {4, 8, 0, Wait::nothing, own(0)},
          {24, 44, 0, Wait::nothing, own(1)},
          {24, 28, 16, Wait::reduction, own(1), 16},
          {44, 64, 0, Wait::nothing, own(3)},
          {64, 65, 36, Wait::reduction, own(5), 36},
          {65, 70, 0, Wait::nothing, own(6)}});
  const RankTimes times = rank_times(rank.program, rank.simulated(), 0);
  EXPECT_EQ(times.compute, 12.0);
  EXPECT_EQ(times.reductions, 52.0);
  EXPECT_EQ(times.update, 6.0);
  EXPECT_EQ(times.bubble, 0.0);

  // With room for two it does not wait. Neither do gradients that add up in the shard or in an accumulator that is
  // there already.
  rank.program.reduce_inputs = 2;
  EXPECT_EQ(rank.simulated().ranks[0][4].start, 8.0);
  rank.program.reduce_inputs = 1;
  rank.program.units[0].gradient_bytes = 0;
  EXPECT_EQ(rank.simulated().ranks[0][4].start, 8.0);
  rank.program.units[0].gradient_bytes = 4;
  rank.program.ranks[0].insert(rank.program.ranks[0].begin(), rank.program.ranks[0][4]);
  rank.program.ranks[0].front().microbatch = 1;
  EXPECT_EQ(rank.simulated().ranks[0][5].start, 12.0);
}

// Compute goes on when the reduction of unit 1 has ended; the one of unit 0 goes on beside it.
TEST(Simulate, AWaitForAReductionHoldsComputeUp) {
  OneRank rank(3);
  rank.program.reduce_inputs = 8;
  rank.compute(Op::backward_weight, 1).unit(Op::reduce_gradient, 1);
  rank.compute(Op::backward_weight, 0).unit(Op::reduce_gradient, 0);
  rank.unit(Op::wait_reduction, 1).compute(Op::backward_weight, 2);
  expect(rank.simulated(), 0,
         {{0, 4, 0, Wait::nothing, {}},
          {4, 24, 4, Wait::compute, own(0)},
          {4, 8, 0, Wait::nothing, own(0)},
          {24, 44, 0, Wait::nothing, own(1)},
          {24, 24, 16, Wait::reduction, own(1), 16},
          {24, 28, 0, Wait::nothing, own(4)}});
  EXPECT_EQ(rank_times(rank.program, rank.simulated(), 0).reductions, 16.0);
  rank.program.ranks[0][4].unit = 0;
  EXPECT_EQ(rank.simulated().ranks[0][5].start, 44.0);
}

// In a solved step a gather takes what any compute before it has given back, not only what the last RESHARD has.
TEST(Simulate, AGatherOfASolvedStepWaitsForAllComputeBeforeIt) {
  OneRank rank(2);
  rank.compute(Op::forward, 0).unit(Op::unshard, 1).compute(Op::forward, 1);
  EXPECT_EQ(rank.simulated().ranks[0][1].start, 0.0);
  rank.program.units[1].policy.residency = Residency::solved;
  expect(rank.simulated(), 0,
         {{0, 2, 0, Wait::nothing, {}}, {2, 12, 2, Wait::room, own(0)}, {12, 14, 10, Wait::gather, own(1), 10}});
  // A wait for a reduction is compute that it waits for.
  OneRank waits(2);
  waits.program.units[1].policy.residency = Residency::solved;
  waits.compute(Op::backward_weight, 0).unit(Op::reduce_gradient, 0).unit(Op::wait_reduction, 0).unit(Op::unshard, 1);
  EXPECT_EQ(waits.simulated().ranks[0][3].start, 24.0);
}

// Copies in another dtype count in the pool like accumulators, even of gradients that add up in the shard; what is
// replicated does not.
TEST(Simulate, CopiesCountInThePoolAndReplicatedGradientsDoNot) {
  OneRank rank(3);
  for (int unit : {2, 1, 0}) rank.compute(Op::backward_weight, unit).unit(Op::reduce_gradient, unit);
  rank.program.units[2].gradient_bytes = 0;
  EXPECT_EQ(rank.simulated().ranks[0][4].start, 8.0);  // only unit 1 is in the pool
  rank.program.units[2].reduce_input_bytes = 2;
  EXPECT_EQ(rank.simulated().ranks[0][4].start, 24.0);
  rank.program.units[2] = {.name = "routing", .replicated = true, .gradient_bytes = 4};
  EXPECT_EQ(rank.simulated().ranks[0][4].start, 8.0);
}

// The compute that made the gradient, not the one that follows it in the list.
TEST(Simulate, GathersAndReductionsTakeTurnsWhereTheyShareAChannel) {
  OneRank rank(2);
  rank.compute(Op::backward_weight, 1).unit(Op::reduce_gradient, 1);
  rank.unit(Op::unshard, 0).compute(Op::forward, 0);
  EXPECT_EQ(rank.simulated().ranks[0][2].start, 0.0);
  EXPECT_EQ(rank.simulated().seconds, 24.0);
  expect(rank.simulated(shared_collectives()), 0,
         {{0, 4, 0, Wait::nothing, {}},
          {4, 24, 4, Wait::compute, own(0)},
          {24, 34, 0, Wait::nothing, own(1)},
          {34, 36, 30, Wait::gather, own(2), 30}});
  expect(rank.simulated(LaneChannels::serial()), 0,
         {{0, 4, 0, Wait::nothing, {}},
          {4, 24, 0, Wait::nothing, own(0)},
          {24, 34, 0, Wait::nothing, own(1)},
          {34, 36, 0, Wait::nothing, own(2)}});
  const RankTimes times = rank_times(rank.program, rank.simulated(LaneChannels::serial()), 0, LaneChannels::serial());
  EXPECT_EQ(times.gathers, 10.0);
  EXPECT_EQ(times.reductions, 20.0);
}

// 2 ranks, 2 microbatches, forwards of 2 and 3 seconds and messages of 10. The second send waits until the first
// message has been received, and the receiver's lane takes them in turn.
Program two_ranks() {
  Program program{stage_tables(2, 1), 2, {}};
  program.ranks.resize(2);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    program.ranks[0].push_back({.op = Op::forward, .stage = 0, .microbatch = microbatch, .segment = 0});
    program.ranks[0].push_back({.op = Op::send_forward, .stage = 0, .microbatch = microbatch, .peer = 1});
    program.ranks[1].push_back({.op = Op::receive_forward, .stage = 1, .microbatch = microbatch, .peer = 0});
    program.ranks[1].push_back({.op = Op::forward, .stage = 1, .microbatch = microbatch, .segment = 1});
  }
  return program;
}
ProgramCosts costs_of_two_ranks(const Program& program) {
  ProgramCosts costs = even_costs(program);
  costs.segments = {{2.0, 0.0, 0.0}, {3.0, 0.0, 0.0}};
  costs.transfers = {10.0, 0.0};
  return costs;
}

TEST(Simulate, AMessageTakesTheLaneAtBothEnds) {
  const Program program = two_ranks();
  const Simulation simulation = simulate(program, costs_of_two_ranks(program));
  expect(simulation, 0,
         {{0, 2, 0, Wait::nothing, {}},
          {2, 12, 2, Wait::compute, own(0)},
          {2, 4, 0, Wait::nothing, own(0)},
          {12, 22, 0, Wait::nothing, own(1)}});
  expect(simulation, 1,
         {{2, 12, 2, Wait::message, own(0)},
          {12, 15, 12, Wait::message, ActionAt{1, 0}},
          {12, 22, 0, Wait::nothing, ActionAt{1, 0}},
          {22, 25, 7, Wait::message, ActionAt{1, 2}}});
  EXPECT_EQ(rank_times(program, simulation, 0).bubble, 21.0);
  EXPECT_EQ(rank_times(program, simulation, 1).bubble, 19.0);
  EXPECT_EQ(critical_path(simulation), (std::vector<ActionAt>{{0, 0}, {1, 0}, {1, 2}, {1, 3}}));
}

// As threads: the sender posts and goes on, the receiver stands still and copies.
TEST(Simulate, AThreadWaitsInItsReceiveAndItsSendOnlyPosts) {
  const Program program = two_ranks();
  const Simulation simulation = simulate(program, costs_of_two_ranks(program), LaneChannels::serial());
  expect(simulation, 0,
         {{0, 2, 0, Wait::nothing, {}},
          {2, 2, 0, Wait::nothing, own(0)},
          {2, 4, 0, Wait::nothing, own(1)},
          {12, 12, 8, Wait::message, ActionAt{1, 0}}});
  expect(simulation, 1,
         {{2, 12, 2, Wait::message, own(0)},
          {12, 15, 0, Wait::nothing, ActionAt{1, 0}},
          {15, 25, 0, Wait::nothing, ActionAt{1, 1}},
          {25, 28, 0, Wait::nothing, ActionAt{1, 2}}});
}

// The ranks are threads with a link that delays. Messages pass it one after another while both ranks compute, and the
// receiver stands still for what is left of that.
TEST(Simulate, ALinkBetweenThreadsDelaysBesideComputation) {
  const Program program = two_ranks();
  const Simulation simulation = simulate(program, costs_of_two_ranks(program), delayed());
  expect(simulation, 0,
         {{0, 2, 0, Wait::nothing, {}},
          {2, 2, 0, Wait::nothing, own(0)},
          {2, 4, 0, Wait::nothing, own(1)},
          {4, 4, 0, Wait::nothing, own(2)}});
  expect(simulation, 1,
         {{2, 12, 2, Wait::message, own(0)},
          {12, 15, 0, Wait::nothing, ActionAt{1, 0}},
          {15, 22, 0, Wait::nothing, ActionAt{1, 1}},
          {22, 25, 0, Wait::nothing, ActionAt{1, 2}}});
}

// Rank 1 has reduced for longer than rank 0 has computed: the norm of rank 0 waits for it.
TEST(Simulate, TheNormWaitsForAllRanks) {
  Program program{stage_tables(2, 1), 1, {}};
  for (int rank = 0; rank < 2; ++rank) {
    program.units[static_cast<std::size_t>(rank)].gradient_bytes = 4;
    program.ranks.push_back({{.op = Op::backward_weight, .stage = rank, .microbatch = 0, .segment = rank},
                             {.op = Op::reduce_gradient, .stage = rank, .unit = rank},
                             {.op = Op::gradient_norm},
                             {.op = Op::optimizer_step}});
  }
  ProgramCosts costs = even_costs(program);
  costs.segments = {{0.0, 0.0, 4.0}, {0.0, 0.0, 7.0}};
  costs.units[0].reduce = 5.0;
  costs.units[1].reduce = 20.0;
  costs.gradient_norm = 1.0;
  const Simulation simulation = simulate(program, costs);
  expect(simulation, 0,
         {{0, 4, 0, Wait::nothing, {}},
          {4, 9, 4, Wait::compute, own(0)},
          {27, 28, 23, Wait::peers, ActionAt{1, 1}, 5},
          {28, 28, 0, Wait::nothing, own(2)}});
  expect(simulation, 1,
         {{0, 7, 0, Wait::nothing, {}},
          {7, 27, 7, Wait::compute, ActionAt{1, 0}},
          {27, 28, 20, Wait::reduction, ActionAt{1, 1}, 20},
          {28, 28, 0, Wait::nothing, ActionAt{1, 2}}});
  const RankTimes times = rank_times(program, simulation, 0);
  EXPECT_EQ(times.reductions, 5.0);
  EXPECT_EQ(times.bubble, 18.0);
  EXPECT_EQ(times.update, 1.0);
}

TEST(Simulate, ComputationsOfWholeStagesStandForTheirParts) {
  OneRank rank(2);
  rank.program.units[1].unsharded_bytes = 0;
  rank.add({.op = Op::unshard, .stage = 0, .unit = 0}).add({.op = Op::forward, .stage = 0, .microbatch = 0});
  EXPECT_EQ(rank.simulated().ranks[0][0].end, 10.0);
  EXPECT_EQ(rank.simulated().ranks[0][1].start, 10.0);
  EXPECT_EQ(rank.simulated().ranks[0][1].end, 14.0);

  Program bare{schedule_only_tables(1, 1),
               1,
               {{{.op = Op::forward, .stage = 0, .microbatch = 0}, {.op = Op::backward, .stage = 0, .microbatch = 0}}}};
  EXPECT_EQ(simulate(bare, even_costs(bare, {2.0, 3.0, 4.0})).seconds, 9.0);
}

// In an order alone the two of a pair begin when both have their data and hand on when both are over. The backward of
// rank 0 has its data at 6, so its forward begins then. Rank 1 has that forward's output at 9, when the pair is over.
TEST(Simulate, PairsOfAnOrderBeginAndEndTogether) {
  Program program{schedule_only_tables(2, 2), 2, {}};
  program.ranks = {{{.op = Op::forward, .stage = 0, .microbatch = 0},
                    {.op = Op::forward, .overlapped = true, .stage = 0, .microbatch = 1},
                    {.op = Op::backward, .overlapped = true, .stage = 0, .microbatch = 0},
                    {.op = Op::backward, .stage = 0, .microbatch = 1}},
                   {{.op = Op::forward, .stage = 1, .microbatch = 0},
                    {.op = Op::backward, .stage = 1, .microbatch = 0},
                    {.op = Op::forward, .stage = 1, .microbatch = 1},
                    {.op = Op::backward, .stage = 1, .microbatch = 1}}};
  ProgramCosts costs = even_costs(program);
  costs.stages[1] = {2.0, 2.0, 1.0};
  const Simulation simulation = simulate(program, costs);
  expect(simulation, 0,
         {{0, 1, 0, Wait::nothing, {}},
          {6, 7, 5, Wait::message, ActionAt{1, 1}},
          {7, 9, 0, Wait::nothing, own(1)},
          {14, 16, 5, Wait::message, ActionAt{1, 3}}});
  expect(simulation, 1,
         {{1, 3, 1, Wait::message, own(0)},
          {3, 6, 0, Wait::nothing, ActionAt{1, 0}},
          {9, 11, 3, Wait::message, own(2)},
          {11, 14, 0, Wait::nothing, ActionAt{1, 2}}});
  // The same without the marks, where the forward is early.
  for (Action& action : program.ranks[0]) action.overlapped = false;
  EXPECT_EQ(simulate(program, costs).ranks[0][1].start, 1.0);
  EXPECT_EQ(simulate(program, costs).ranks[1][2].start, 6.0);
}

std::string failure_of(const Program& program, const ProgramCosts& costs) {
  try {
    simulate(program, costs);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    return error.what();
  }
  return "simulated";
}

TEST(Simulate, WhatWaitsForEverIsNamed) {
  Program program = two_ranks();
  const ProgramCosts costs = costs_of_two_ranks(program);
  std::swap(program.ranks[0][1], program.ranks[0][3]);  // microbatch 1 is sent first
  EXPECT_EQ(failure_of(program, costs), "rank 0 waits for ever at 0SEND_F0, action 3 of its list");

  Program order = ordered(find_schedule("gpipe"), {.ranks = 2, .microbatches = 1});
  std::swap(order.ranks[0][0], order.ranks[0][1]);
  EXPECT_EQ(failure_of(order, even_costs(order)), "rank 0 waits for ever at 0B0, action 0 of its list");

  program = two_ranks();
  program.ranks[1].push_back({.op = Op::gradient_norm});
  program.ranks[1].push_back({.op = Op::gradient_norm});
  program.ranks[0].push_back({.op = Op::gradient_norm});
  EXPECT_EQ(failure_of(program, costs), "rank 1 waits for ever at GRAD_NORM, action 5 of its list");
}

TEST(Simulate, RefusesWhatMakesNoSense) {
  Program program = two_ranks();
  ProgramCosts costs = costs_of_two_ranks(program);
  costs.units.pop_back();
  EXPECT_EQ(failure_of(program, costs), "costs of 1 units for a program that has 2");
  costs = costs_of_two_ranks(program);
  costs.segments[1].backward_input = -1.0;
  EXPECT_EQ(failure_of(program, costs), "segment 1 costs -1 seconds, which is no time");
  costs = costs_of_two_ranks(program);
  program.ranks[0][1].peer = 7;
  EXPECT_EQ(failure_of(program, costs), "rank 0 cannot run its SEND_F: it names no rank at its other end");
  program = two_ranks();
  program.ranks[1].push_back({.op = Op::send_forward, .stage = 1, .microbatch = 0, .peer = 0});
  EXPECT_EQ(failure_of(program, costs), "rank 1 cannot run its SEND_F: there is no stage at its other end");
  program.ranks[1].back() = {.op = Op::forward, .stage = 5, .microbatch = 0};
  EXPECT_TRUE(failure_of(program, costs).starts_with("rank 1 cannot run its F: stage 5 does not exist"));
}

// A forward takes one second and each half of a backward one: the clock of the timeline, on every order.
TEST(Simulate, AnOrderWithUnitCostsIsTheUnitTimeline) {
  int programs = 0;
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 5, 3, 10)) {
      const Program program = ordered(schedule, input);
      const Simulation simulation = simulate(program, even_costs(program));
      const auto timeline = unit_timeline(program);
      ++programs;
      for (std::size_t rank = 0; rank < timeline.size(); ++rank) {
        for (std::size_t i = 0; i < timeline[rank].size(); ++i) {
          ASSERT_EQ(simulation.ranks[rank][i].start, timeline[rank][i].begin) << described(schedule, input);
          ASSERT_EQ(simulation.ranks[rank][i].end, timeline[rank][i].end) << described(schedule, input);
        }
      }
    }
  }
  EXPECT_GT(programs, 500);
}

// 16 ranks, 64 units, 128 microbatches, everything gathered anew at each use: a second would be far too long.
TEST(Simulate, ALargeStepTakesNoTime) {
  const Program program = compiled(find_schedule("interleaved"), {.ranks = 16, .chunks = 4, .microbatches = 128}, 16,
                                   {.residency = Residency::reshard_after_use, .reduce_every = 1});
  std::size_t actions = 0;
  for (const auto& list : program.ranks) actions += list.size();
  EXPECT_GT(actions, 900000u);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GT(simulate(program, even_costs(program)).seconds, 0.0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace weft
