#include "parallel/pipeline/simulation/cost_model.h"

#include <gtest/gtest.h>

#include "parallel/runtime/error.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

// A ring by itself, step by step: in each of n - 1 steps every rank hands one of n parts on.
double ring(double latency, double bytes_per_second, double payload, int ranks) {
  double seconds = 0.0;
  for (int step = 1; step < ranks; ++step) seconds += latency + payload / ranks / bytes_per_second;
  return seconds;
}

TEST(CostModel, CollectivesTakeAsLongAsARing) {
  const LinkCost link{3e-6, 4e9};
  for (int ranks : {1, 2, 3, 8, 64}) {
    for (double payload : {0.0, 1.0, 1e6, 3e9}) {
      const double once = ring(3e-6, 4e9, payload, ranks);
      const double tolerance = 1e-12 * once;  // n sums of n roundings of 1e-16
      EXPECT_NEAR(link_seconds(link, CollectiveOp::all_gather, payload, ranks), once, tolerance);
      EXPECT_NEAR(link_seconds(link, CollectiveOp::reduce_scatter, payload, ranks), once, tolerance);
      EXPECT_NEAR(link_seconds(link, CollectiveOp::all_to_all, payload, ranks), once, tolerance);
      EXPECT_NEAR(link_seconds(link, CollectiveOp::all_reduce, payload, ranks), 2 * once, 2 * tolerance);
    }
  }
  EXPECT_EQ(link_seconds({0.5, 4.0}, CollectiveOp::send, 10.0, 2), 3.0);
}

// 3 latencies of 1 and 3/4 of 32 bytes at 2 or at 8 a second.
TEST(CostModel, ExchangesMayHaveARateOfTheirOwn) {
  const LinkCost link{1.0, 8.0, 2.0};
  EXPECT_EQ(link_seconds(link, CollectiveOp::all_to_all, 32.0, 4), 3.0 + 12.0);
  EXPECT_EQ(link_seconds(link, CollectiveOp::all_gather, 32.0, 4), 3.0 + 3.0);
}

// 2 ranks, 2 stages of one segment each, every number a power of two so that sums are exact.
struct Case {
  Case() : tables(stage_tables(2, 1)) {
    tables.stages[0].output_bytes = 256;
    tables.segments[0].collectives = {{Op::forward, CollectiveOp::all_gather, Group::tp, 2, 128},
                                      {Op::backward_input, CollectiveOp::all_reduce, Group::tp, 1, 64},
                                      {Op::backward_weight, CollectiveOp::all_gather, Group::cp, 1, 1 << 20}};
    tables.units[0].policy.island_ranks = 4;
    tables.units[0].collectives = {{Op::unshard, CollectiveOp::all_gather, Group::dp_shard, 1, 1024},
                                   {Op::unshard_secondary, CollectiveOp::all_gather, Group::dp_island, 1, 1024},
                                   {Op::scatter_gradient, CollectiveOp::reduce_scatter, Group::dp_shard, 1, 2048},
                                   {Op::reduce_gradient, CollectiveOp::reduce_scatter, Group::dp_shard, 1, 2048},
                                   {Op::reduce_gradient, CollectiveOp::all_reduce, Group::dp_replicate, 1, 256}};
    tables.update = {{Op::gradient_norm, CollectiveOp::all_reduce, Group::world, 3, 24},
                     {Op::optimizer_step, CollectiveOp::all_reduce, Group::world, 1, 32}};
    hardware.seconds_per_flop_forward = 0.25;
    hardware.seconds_per_flop_backward = 0.5;
    hardware.links = {{Group::tp, {1.0, 32.0}},         {Group::dp_shard, {2.0, 64.0}},
                      {Group::dp_island, {1.0, 128.0}}, {Group::dp_replicate, {4.0, 16.0}},
                      {Group::world, {0.5, 8.0}},       {Group::pp, {1.0, 32.0}}};
    for (Group group : all_groups) sizes[group] = 1;  // one rank along cp: it needs no link
    sizes[Group::tp] = 2;
    sizes[Group::dp_shard] = 8;
    sizes[Group::dp_replicate] = 2;
    sizes[Group::world] = 2;
  }
  ProgramTables tables;
  HardwareCosts hardware;
  GroupSizes sizes;
};

TEST(CostModel, AddsWhatAnActionDoes) {
  const Case c;
  const std::vector<SegmentFlops> flops = {{8.0, 16.0, 4.0}, {1.0, 1.0, 1.0}};
  const ProgramCosts costs = modelled_costs(c.tables, flops, c.hardware, c.sizes);
  // Two gathers of 64 bytes over 2 ranks: 1 + 32 / 32 each. One sum of 64 bytes: twice 1 + 32 / 32.
  EXPECT_EQ(costs.segments[0], (ComputeCost{2.0 + 4.0, 8.0 + 4.0, 2.0}));
  EXPECT_EQ(costs.segments[1], (ComputeCost{0.25, 0.5, 0.5}));
  // 7 x 2 + 896 / 64; 3 x 1 + 768 / 128; 7 x 2 + 1792 / 64; the last and 2 (4 + 128 / 16).
  EXPECT_EQ(costs.units[0], (UnitCost{28.0, 9.0, 42.0, 66.0}));
  EXPECT_EQ(costs.units[1], UnitCost{});
  EXPECT_EQ(costs.transfers, (std::vector{9.0, 0.0}));
  EXPECT_EQ(costs.gradient_norm, 3 * 2 * (0.5 + 4.0 / 8.0));
  EXPECT_EQ(costs.optimizer_step, 2 * (0.5 + 16.0 / 8.0));
}

// Of the costs above, the part without operations; a group of one rank is left out.
TEST(CostModel, TellsCollectivesOfComputationApart) {
  const Case c;
  const auto collectives = compute_collectives(c.tables, {}, c.hardware, c.sizes);
  ASSERT_EQ(collectives.size(), 1u);
  const std::vector<ComputeCost>& segments = collectives.at(Group::tp).segments;
  EXPECT_EQ(segments[0], (ComputeCost{4.0, 4.0, 0.0}));
  EXPECT_EQ(segments[1], ComputeCost{});
}

// Over 4 ranks n bytes take 3 x 1 + 3/4 n / 8 seconds. That is 15 for the 128 bytes out, forward and backward, and 9
// for the 64 back. R exchanges out alone, and the operations that it is spared are 8 of 32. A count of 3 seconds comes
// in front of the exchange. Each case is forward, input gradient, R, and what is covered of the way out.
TEST(CostModel, ComputationWithoutRowsCoversTheWayOut) {
  Case c;
  ProgramSegment& segment = c.tables.segments[0];
  segment.region = 0;
  segment.collectives = {
      {.during = Op::forward, .op = CollectiveOp::all_to_all, .group = Group::ep, .count = 1, .bytes = 0},
      {.during = Op::forward,
       .op = CollectiveOp::all_to_all,
       .group = Group::ep,
       .count = 1,
       .bytes = 128,
       .beside = 1},
      {.during = Op::forward, .op = CollectiveOp::all_to_all, .group = Group::ep, .count = 1, .bytes = 64, .beside = 2},
      {.during = Op::recompute,
       .op = CollectiveOp::all_to_all,
       .group = Group::ep,
       .count = 1,
       .bytes = 128,
       .beside = 1},
      {.during = Op::backward_input,
       .op = CollectiveOp::all_to_all,
       .group = Group::ep,
       .count = 1,
       .bytes = 128,
       .beside = 1},
      {.during = Op::backward_input,
       .op = CollectiveOp::all_to_all,
       .group = Group::ep,
       .count = 1,
       .bytes = 64,
       .beside = 2}};
  c.hardware.links[Group::ep] = {1.0, 8.0};
  c.sizes[Group::ep] = 4;
  struct Expected {
    double beside, forward, backward_input, recompute, forward_covered, backward_covered;
  };
  // Products take 8 forward, 16 in the input gradient and 6 in R. The same operations take twice as long backward.
  for (const Expected& one : {Expected{0.0, 8.0 + 3 + 15 + 9, 16.0 + 15 + 9, 6.0 + 15, 0.0, 0.0},
                              Expected{16.0, 8.0 + 3 + 11 + 9, 16.0 + 7 + 9, 6.0 + 11, 4.0, 8.0},
                              Expected{80.0, 8.0 + 3 + 9, 16.0 + 9, 6.0, 15.0, 15.0}}) {
    SCOPED_TRACE(one.beside);
    const std::vector<SegmentFlops> flops = {
        {.forward = 32.0, .backward_input = 32.0, .backward_weight = 32.0, .spared = 8.0, .beside = one.beside}, {}};
    const ComputeCost cost = modelled_costs(c.tables, flops, c.hardware, c.sizes).segments[0];
    EXPECT_EQ(cost.forward, one.forward);
    EXPECT_EQ(cost.backward_input, one.backward_input);
    EXPECT_EQ(cost.recompute(), one.recompute);
    EXPECT_EQ(cost.forward_covered, one.forward_covered);
    EXPECT_EQ(cost.backward_covered, one.backward_covered);
    EXPECT_EQ(cost.forward_out, 15.0);  // however much of it is covered
    EXPECT_EQ(cost.backward_out, 15.0);
    // Cut, a part has all products, and the exchanges are actions.
    const auto part = [&](Op op) {
      const Action action{.op = op, .part = {1, 3}, .stage = 0, .microbatch = 0, .segment = 0};
      return cost_of(c.tables, modelled_costs(c.tables, flops, c.hardware, c.sizes), action);
    };
    EXPECT_EQ(part(Op::forward), 8.0 + 3);
    EXPECT_EQ(part(Op::backward_input), 16.0);
    const ComputeCost exposed = compute_collectives(c.tables, flops, c.hardware, c.sizes).at(Group::ep).segments[0];
    EXPECT_EQ(exposed.forward, one.forward - 8.0);
    EXPECT_EQ(exposed.backward_input, one.backward_input - 16.0);
    EXPECT_EQ(exposed.recompute(), one.recompute - 6.0);
    const ComputeCost whole = compute_collectives(c.tables, {}, c.hardware, c.sizes).at(Group::ep).segments[0];
    EXPECT_EQ(whole.forward, 3.0 + 15 + 9);
    EXPECT_EQ(whole.backward_input, 15.0 + 9);
  }
}

TEST(CostModel, AGroupWithoutALinkIsNamed) {
  Case c;
  c.hardware.links.erase(Group::dp_replicate);
  try {
    modelled_costs(c.tables, {}, c.hardware, c.sizes);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_STREQ(error.what(), "no link is given for group dp_replicate, which the program uses");
  }
  c.sizes[Group::dp_replicate] = 1;
  EXPECT_EQ(modelled_costs(c.tables, {}, c.hardware, c.sizes).units[0].reduce, 42.0);
}

TEST(CostModel, NeighboursOnOneRankSendNothing) {
  const ProgramTables tables = stage_tables(2, 1, {}, 2, Placement::v);  // ranks 0 1 1 0
  const HardwareCosts hardware{.links = {{Group::pp, {1.0, 100.0}}}};
  const ProgramCosts costs = modelled_costs(tables, {}, hardware, {});
  EXPECT_GT(costs.transfers[0], 1.0);
  EXPECT_EQ(costs.transfers[1], 0.0);
  EXPECT_GT(costs.transfers[2], 1.0);
}

TEST(CostModel, GroupsHaveTheSizesOfTheMesh) {
  const GroupSizes sizes = group_sizes(Mesh({.pipeline = 2, .data_replicate = 2, .data_shard = 3, .tensor = 2}));
  EXPECT_EQ(sizes.at(Group::dp_shard), 3);
  EXPECT_EQ(sizes.at(Group::dp_replicate), 2);
  EXPECT_EQ(sizes.at(Group::tokens), 12);
  EXPECT_EQ(sizes.at(Group::world), 24);
}

}  // namespace
}  // namespace weft
