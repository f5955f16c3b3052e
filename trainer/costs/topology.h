// Places of a mesh's groups on nodes, and the bytes that leave a node when they communicate. Pure arithmetic with a few
// operations for each rank, so worlds of tens of thousands are cheap to plan. Ranks fill nodes in order.
//
// Collectives go around a ring in the order of ranks, as NCCL's do over several nodes. A ring leaves a node once if
// some of its ranks are there and some elsewhere. All groups of a kind communicate at the same time (every rank is in
// one) and share the adapters of a node. The simulation adds the effect of different kinds on each other (simulate.h).
#pragma once

#include "parallel/comm/counters.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/simulation/cost_model.h"

namespace weft {

// Steps of islands of `ranks` neighbours inside a shard group.
RankSteps island_steps(const Mesh& mesh, Group shard_group, int ranks);

// All groups of a kind together, in one node.
struct GroupLinks {
  int ranks = 1;  // of one group
  // Ring edges from a rank of the node to another node. For messages between stages: ranks that send to another node.
  int ring_edges = 0;
  // Parts that leave the node, in payloads of a rank. They are of an exchange in which each rank sends every rank of
  // its group (itself included) an equal part.
  double exchanged_payloads = 0.0;

  bool crosses_nodes() const { return ring_edges > 0; }
  bool operator==(const GroupLinks&) const = default;
};
// Of the node that begins with rank `begin`.
GroupLinks node_links(int world, RankSteps steps, int ranks_per_node, int begin);
// The most of any node.
GroupLinks group_links(int world, RankSteps steps, int ranks_per_node);
GroupLinks group_links(const Mesh& mesh, Group group, int ranks_per_node);

// Bytes of a payload (as counters.h counts it) that a ring makes a rank of a group send.
double ring_bytes(CollectiveOp op, double payload, int ranks);

// Bytes that leave the node of `links` when every group runs one collective; `payload` as counters.h counts it:
//
//   all_gather, reduce_scatter   ring_edges (n - 1) / n payload
//   all_reduce                   twice that
//   all_to_all                   exchanged_payloads payload
//   broadcast, a message         ring_edges payload
double node_egress_bytes(const GroupLinks& links, CollectiveOp op, double payload);

// The link of one group when all groups of its kind communicate: `inside` if none leaves a node. Otherwise the latency
// of `between_nodes` and a share of the rate out of a node, at most the rate of `inside`. Groups of a kind that leaves
// nodes have the adapters to themselves, until other kinds use them.
LinkCost shared_link(const GroupLinks& links, const LinkCost& inside, const LinkCost& between_nodes);

// Throws Error (request) with the nearest numbers that do, unless `world` ranks fill nodes or fit into one node.
// Training does not need full nodes and does not check this.
void require_full_nodes(int world, int ranks_per_node);

}  // namespace weft
