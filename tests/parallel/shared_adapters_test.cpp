// Transfers that leave a node at the same time. Their seconds are worked out by hand, and on programs drawn at random
// their law is read off the finished schedule alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/pipeline/simulation/simulate.h"
#include "tests/parallel/random_program.h"

namespace weft {
namespace {

// `ranks` ranks with a stage of two segments each; what leaves a node takes all of what it costs.
struct Small {
  explicit Small(int ranks) {
    program.microbatches = 1;
    static_cast<ProgramTables&>(program) = stage_tables(ranks, 2);
    for (ProgramUnit& unit : program.units) unit.gradient_bytes = 4;
    program.ranks.resize(static_cast<std::size_t>(ranks));
    static_cast<ActionCosts&>(costs) = even_costs(program, {0.0, 0.0, 0.0});
    for (ComputeCost& cost : costs.segments) cost = {8.0, 8.0, 8.0};
    for (UnitCost& cost : costs.units) cost = {.gather = 10.0, .reduce = 20.0};
    costs.on_adapters = costs;
    for (ComputeCost& cost : costs.on_adapters.segments) cost = {};
  }
  Small& add(int rank, const Action& action) {
    program.ranks[static_cast<std::size_t>(rank)].push_back(action);
    return *this;
  }
  std::vector<double> ends(int rank) const {
    const Simulation simulation = simulate(program, costs);
    std::vector<double> result;
    for (const SimulatedAction& action : simulation.ranks[static_cast<std::size_t>(rank)]) result.push_back(action.end);
    return result;
  }

  Program program;
  ProgramCosts costs;
};

Action weight_gradient(int stage, int segment) {
  return {.op = Op::backward_weight, .stage = stage, .microbatch = 0, .segment = segment};
}

// Both begin at 8. Until the gather has its 10 seconds each goes at half the rate, so it ends at 8 + 20. The reduction
// has half of its 20 seconds by then, and the other half alone.
TEST(SharedAdapters, AGatherAndAReductionHaveHalfEach) {
  Small small(1);
  small.add(0, weight_gradient(0, 0)).add(0, {.op = Op::unshard, .stage = 0, .unit = 1});
  small.add(0, {.op = Op::reduce_gradient, .stage = 0, .unit = 0});
  small.program.units[1].policy.residency = Residency::solved;  // gathers behind the compute before it
  EXPECT_EQ(small.ends(0), (std::vector{8.0, 28.0, 38.0}));
  EXPECT_EQ(busiest_adapters(small.program, small.costs), 30.0);
  // Of a gather of 10 seconds, 6 need no adapters. It joins at 14, after 6 of the reduction, and takes 8 for its 4.
  small.costs.on_adapters.units[1].gather = 4.0;
  EXPECT_EQ(small.ends(0), (std::vector{8.0, 22.0, 32.0}));
}

// Neither rank shares with a rank of another node.
TEST(SharedAdapters, AreThoseOfOneNode) {
  Small small(2);
  for (int rank : {0, 1}) {
    small.add(rank, {.op = Op::unshard, .stage = rank, .unit = 2 * rank});
    small.add(rank, {.op = Op::reshard, .stage = rank, .unit = 2 * rank});
  }
  EXPECT_EQ(small.ends(0).front(), 10.0);
  EXPECT_EQ(small.ends(1).front(), 10.0);
  small.costs.adapters = {0, 0};
  EXPECT_EQ(small.ends(0).front(), 20.0);
  EXPECT_EQ(small.ends(1).front(), 20.0);
}

// An exchange inside a segment of 8 seconds, of which 3 leave the node, against a gather. Products run until 5, when
// the gather has had 5 of its 10 seconds. Then the exchange goes at half the rate and has its 3 by 11.
TEST(SharedAdapters, AnExchangeInsideComputeSharesToo) {
  Small small(1);
  small.costs.on_adapters.segments[1].backward_weight = 3.0;
  small.add(0, {.op = Op::unshard, .stage = 0, .unit = 0}).add(0, weight_gradient(0, 1));
  EXPECT_EQ(small.ends(0), (std::vector{13.0, 11.0}));
}

// --- drawn at random ------------------------------------------------------------------------------------------------

ProgramCosts shared_costs(Dice& dice, const Program& program) {
  ProgramCosts costs = random_costs(dice, program);
  costs.on_adapters = costs;
  const auto part = [&](double& seconds) { seconds *= dice.below(5) / 4.0; };
  for (ComputeCost& cost : costs.on_adapters.segments) {
    for (double* seconds : {&cost.forward, &cost.backward_input, &cost.backward_weight}) part(*seconds);
    cost.forward_covered = cost.backward_covered = 0.0;  // by products, which use no adapters
  }
  for (ComputeCost& cost : costs.on_adapters.stages) cost = {};
  for (UnitCost& cost : costs.on_adapters.units) {
    for (double* seconds : {&cost.gather, &cost.island_gather, &cost.scatter, &cost.reduce, &cost.tie}) part(*seconds);
  }
  for (double& seconds : costs.on_adapters.transfers) part(seconds);
  part(costs.on_adapters.gradient_norm);
  part(costs.on_adapters.optimizer_step);
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    costs.adapters.push_back(dice.one_in(2) ? static_cast<int>(rank) : 0);
  }
  return costs;
}

struct Transfer {
  int node = 0;
  double begin = 0.0, end = 0.0, seconds = 0.0;
};

std::vector<Transfer> transfers_of(const Program& program, const ProgramCosts& costs, const Simulation& simulation) {
  std::vector<Transfer> transfers;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      const double seconds = adapter_seconds(program, costs, LaneChannels::own(), action);
      if (seconds == 0.0) continue;
      const SimulatedAction& at = simulation.ranks[rank][i];
      const double own = cost_of(program, costs, action) - seconds;
      transfers.push_back({costs.adapters_of(rank), at.start + own, at.end, seconds});
    }
  }
  return transfers;
}

// What a transfer has had of the adapters when it ends, each of those under way having had the same.
double had(const Transfer& transfer, const std::vector<Transfer>& all) {
  std::vector<double> times;
  for (const Transfer& each : all) times.insert(times.end(), {each.begin, each.end});
  std::ranges::sort(times);
  double seconds = 0.0;
  for (std::size_t i = 0; i + 1 < times.size(); ++i) {
    const double middle = (times[i] + times[i + 1]) / 2;
    const auto runs = [&](const Transfer& each) {
      return each.node == transfer.node && each.begin <= middle && middle <= each.end;
    };
    if (runs(transfer)) seconds += (times[i + 1] - times[i]) / static_cast<double>(std::ranges::count_if(all, runs));
  }
  return seconds;
}

TEST(SharedAdapters, EveryTransferHasItsShareAndNoStepBeatsTheBound) {
  std::size_t shared = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const Program program = random_program(dice, 3, 4);
    const ProgramCosts costs = shared_costs(dice, program);
    const Simulation simulation = simulate(program, costs);
    const auto transfers = transfers_of(program, costs, simulation);
    // Thousands of sums of seconds below 1e4.
    constexpr double tolerance = 1e-6;
    for (std::size_t i = 0; i < transfers.size(); i += 1 + transfers.size() / 50) {
      EXPECT_NEAR(had(transfers[i], transfers), transfers[i].seconds, tolerance);
    }
    EXPECT_GE(simulation.seconds, busiest_adapters(program, costs) - tolerance);
    ProgramCosts alone = costs;
    alone.on_adapters = {};
    const double without = simulate(program, alone).seconds;
    EXPECT_GE(simulation.seconds, without - tolerance);
    if (simulation.seconds > without + tolerance) ++shared;
    // Where lanes take turns, and no two ranks share, nothing meets.
    alone.adapters = {};
    ProgramCosts apart = alone;
    apart.on_adapters = costs.on_adapters;
    EXPECT_NEAR(simulate(program, apart, LaneChannels::serial()).seconds,
                simulate(program, alone, LaneChannels::serial()).seconds, tolerance);
  }
  EXPECT_GT(shared, 30u);
}

}  // namespace
}  // namespace weft
