// Groups on nodes against rings that are walked edge by edge, and against the worked example of 7 billion parameters on
// two nodes.
#include "trainer/costs/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

const std::vector<Degrees> topology_meshes = {
    {},
    {.data_shard = 16},
    {.data_replicate = 2, .data_shard = 8},
    {.pipeline = 4, .data_shard = 4, .expert = 4},
    {.pipeline = 2, .data_replicate = 2, .data_shard = 3, .context = 2, .tensor = 2, .expert = 4, .expert_tensor = 2},
    {.pipeline = 3, .data_shard = 4, .tensor = 4, .expert = 8, .expert_tensor = 2},
    {.data_replicate = 3, .data_shard = 2, .tensor = 2, .expert = 12},  // an expert group over several replicas
    {.pipeline = 2, .data_replicate = 2, .data_shard = 8, .context = 2, .expert = 8},
};

TEST(Topology, StepsOfRanksAreTheGroupsOfTheMesh) {
  for (const Degrees& degrees : topology_meshes) {
    const Mesh mesh(degrees);
    for (const Group group : all_groups) {
      const RankSteps steps = mesh.steps(group);
      for (const std::vector<int>& ranks : mesh.groups(group)) {
        ASSERT_EQ(std::ssize(ranks), steps.count) << name_of(group);
        for (int place = 0; place < steps.count; ++place) {
          EXPECT_EQ(ranks[static_cast<std::size_t>(place)], ranks[0] + place * steps.stride) << name_of(group);
          EXPECT_EQ(ranks[static_cast<std::size_t>(place)] / steps.stride % steps.count, place) << name_of(group);
        }
      }
    }
  }
  const Mesh mesh({.data_shard = 8, .tensor = 2});
  const RankSteps island = island_steps(mesh, Group::dp_shard, 4);
  EXPECT_EQ(mesh.island_of(Group::dp_shard, 3, 4),
            (std::vector<int>{1, 1 + island.stride, 1 + 2 * island.stride, 1 + 3 * island.stride}));
  EXPECT_THROW(mesh.steps(Group::tied), Error);
}

// Every ring of a kind walked once around, every exchange sent piece by piece.
GroupLinks walked(const Mesh& mesh, Group group, int ranks_per_node) {
  std::map<int, int> edges, pieces;
  std::size_t size = 1;
  for (const std::vector<int>& ranks : mesh.groups(group)) {
    size = ranks.size();
    for (std::size_t i = 0; i < size; ++i) {
      const int from = ranks[i] / ranks_per_node;
      if (from != ranks[(i + 1) % size] / ranks_per_node) ++edges[from];
      for (const int to : ranks) pieces[from] += from != to / ranks_per_node;
    }
  }
  GroupLinks most{.ranks = static_cast<int>(size)};
  for (const auto& [node, count] : edges) most.ring_edges = std::max(most.ring_edges, count);
  for (const auto& [node, count] : pieces) {
    most.exchanged_payloads = std::max(most.exchanged_payloads, static_cast<double>(count) / static_cast<double>(size));
  }
  return most;
}

TEST(Topology, LinksAreThoseOfRingsWalkedEdgeByEdge) {
  for (const Degrees& degrees : topology_meshes) {
    const Mesh mesh(degrees);
    // Nodes that groups fill, that cut them, and a last one that is not full.
    for (const int ranks_per_node : {1, 2, 3, 4, 5, 8, 16, 1 << 20}) {
      for (const Group group : all_groups) {
        EXPECT_EQ(group_links(mesh, group, ranks_per_node), walked(mesh, group, ranks_per_node))
            << name_of(group) << " of " << mesh.world() << " ranks on nodes of " << ranks_per_node;
      }
    }
  }
}

// By hand: two nodes of eight.
TEST(Topology, SixteenRanksOnTwoNodes) {
  const Mesh whole({.data_shard = 16});
  EXPECT_EQ(group_links(whole, Group::dp_shard, 8),
            (GroupLinks{.ranks = 16, .ring_edges = 1, .exchanged_payloads = 4.0}));
  const Mesh hybrid({.data_replicate = 2, .data_shard = 8});
  EXPECT_EQ(group_links(hybrid, Group::dp_shard, 8), (GroupLinks{.ranks = 8}));
  EXPECT_EQ(group_links(hybrid, Group::dp_replicate, 8),
            (GroupLinks{.ranks = 2, .ring_edges = 8, .exchanged_payloads = 4.0}));
  // Each rank of a stage sends to its neighbour on the other node.
  EXPECT_EQ(group_links(Mesh({.pipeline = 2, .data_shard = 8}), Group::pp, 8).ring_edges, 8);
  // Two stages on a node: one sends inside.
  EXPECT_EQ(group_links(Mesh({.pipeline = 4, .data_shard = 4}), Group::pp, 8).ring_edges, 4);
}

// W = 16 ranks, M = 2 bytes a parameter of 6,738,415,616, and r the bytes of a reduced element over 2. These bytes
// leave a node in a step:
//   FULL_SHARD     two gathers and a reduce-scatter around one ring of 16    (2 + r) 15/16 M
//   HYBRID 8 x 2   eight all-reduces over two ranks, each of M/8             8 x 2 x 1/2 r M/8 = r M
//   NO_SHARD       one all-reduce around the ring of 16                      2 x 15/16 r M
// A table of worked sizes has them as 37.9 and 50.5, 13.5 and 27.0, 25.3 and 50.5 GB.
TEST(Topology, EgressOfSevenBillionParametersOnTwoNodes) {
  const double parameters = 6'738'415'616;
  const GroupLinks whole = group_links(Mesh({.data_shard = 16}), Group::dp_shard, 8);
  const GroupLinks replicas = group_links(Mesh({.data_replicate = 2, .data_shard = 8}), Group::dp_replicate, 8);
  const double gather = node_egress_bytes(whole, CollectiveOp::all_gather, 2 * parameters);
  struct Row {
    double reduced_bytes, full_shard, hybrid, no_shard;
  };
  for (const Row& row : {Row{2.0, 37.9e9, 13.5e9, 25.3e9}, Row{4.0, 50.5e9, 27.0e9, 50.5e9}}) {
    const double reduced = row.reduced_bytes * parameters;
    // The table has three digits.
    EXPECT_NEAR(2 * gather + node_egress_bytes(whole, CollectiveOp::reduce_scatter, reduced), row.full_shard, 0.05e9);
    EXPECT_NEAR(node_egress_bytes(replicas, CollectiveOp::all_reduce, reduced / 8), row.hybrid, 0.05e9);
    EXPECT_NEAR(node_egress_bytes(whole, CollectiveOp::all_reduce, reduced), row.no_shard, 0.05e9);
  }
  EXPECT_EQ(node_egress_bytes(group_links(Mesh({.data_replicate = 2, .data_shard = 8}), Group::dp_shard, 8),
                              CollectiveOp::all_gather, 1e9),
            0.0);
  EXPECT_EQ(node_egress_bytes(replicas, CollectiveOp::send, 3.0), 24.0);
  EXPECT_EQ(node_egress_bytes(replicas, CollectiveOp::receive, 3.0), 0.0);
}

// What a collective takes on its share of the adapters is what leaves the node over all of them, unless the links
// inside are slower.
TEST(Topology, GroupsShareTheAdaptersOfANode) {
  const LinkCost inside{1e-6, 450e9}, between{1e-5, 400e9};
  EXPECT_EQ(shared_link({.ranks = 8}, inside, between), inside);
  for (const Degrees& degrees : topology_meshes) {
    const Mesh mesh(degrees);
    for (const Group group : all_groups) {
      const GroupLinks links = group_links(mesh, group, 8);
      if (!links.crosses_nodes()) continue;
      const LinkCost link = shared_link(links, {0.0, 1e30}, {0.0, 400e9});
      for (const CollectiveOp op : {CollectiveOp::all_gather, CollectiveOp::reduce_scatter, CollectiveOp::all_reduce,
                                    CollectiveOp::all_to_all}) {
        const double seconds = link_seconds(link, op, 1e9, links.ranks);
        // A dozen roundings.
        EXPECT_NEAR(seconds, node_egress_bytes(links, op, 1e9) / 400e9, 1e-14 * seconds) << name_of(group);
      }
    }
  }
  EXPECT_EQ(shared_link(group_links(Mesh({.data_shard = 16}), Group::dp_shard, 8), inside, between).bytes_per_second,
            400e9);
  EXPECT_EQ(
      shared_link(group_links(Mesh({.data_replicate = 2, .data_shard = 8}), Group::dp_replicate, 8), inside, between)
          .bytes_per_second,
      50e9);
  EXPECT_EQ(
      shared_link({.ranks = 16, .ring_edges = 1, .exchanged_payloads = 4.0}, {1e-6, 25e9}, between).bytes_per_second,
      25e9);
}

// 8,192 nodes, whose groups are the same on every node.
TEST(Topology, LargeWorlds) {
  const Mesh mesh({.pipeline = 16, .data_replicate = 4, .data_shard = 128, .tensor = 8, .expert = 64});
  ASSERT_EQ(mesh.world(), 65'536);
  for (const auto& [group, edges] : {std::pair(Group::tp, 0),
                                     {Group::dp_shard, 8},
                                     {Group::dp_replicate, 8},
                                     {Group::pp, 8},
                                     {Group::ep, 1},
                                     {Group::edp, 8},
                                     {Group::tokens, 1}}) {
    EXPECT_EQ(group_links(mesh, group, 8).ring_edges, edges) << name_of(group);
  }
  // A rank keeps 8 of 64 pieces on its node.
  EXPECT_EQ(group_links(mesh, Group::ep, 8).exchanged_payloads, 8.0 * 56 / 64);
}

TEST(Topology, WorldsFillNodes) {
  for (const int world : {1, 3, 8, 16, 64}) EXPECT_NO_THROW(require_full_nodes(world, 8)) << world;
  EXPECT_EQ(
      refusal_of([] { require_full_nodes(20, 8); }).value_or(""),
      "20 ranks do not fill nodes of 8 ranks: 2 x 8 = 16, 3 x 8 = 24; take 16 or 24 ranks by the degrees of "
      "[parallelism], in a search by --world, or set hardware.ranks_per_node to a divisor of 20, such as 5 or 10");
  EXPECT_NE(refusal_of([] { require_full_nodes(13, 8); }).value_or("").find("such as 1 or 13"), std::string::npos);
}

}  // namespace
}  // namespace weft
