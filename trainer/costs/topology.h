// How the groups of a mesh lie on nodes, and what leaves a node when they communicate: pure arithmetic, a few
// operations for each rank, so that worlds of tens of thousands are free to plan for. Ranks fill nodes in order.
//
// Collectives go around a ring in the order of ranks, as NCCL's do over several nodes. A ring leaves a node once if
// some of its ranks are there and some elsewhere. All groups of a kind communicate at the same time (every rank is in
// one) and share the adapters of a node. What kinds of groups do to each other there, the simulation says (simulate.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/counters.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/simulation/cost_model.h"

namespace weft {

// The ranks of a group: `first`, first + stride, and so on, `count` of them. Which groups there are follows: a rank is
// at place rank / stride % count of its own.
struct RankSteps {
  int stride = 1, count = 1;
  bool operator==(const RankSteps&) const = default;
};
// Of any group that degrees decide. Throws Error for the others.
RankSteps rank_steps(const Mesh& mesh, Group group);
// Of islands of `ranks` neighbours inside a shard group.
RankSteps island_steps(const Mesh& mesh, Group shard_group, int ranks);

// All groups of a kind together, in the node that most of it leaves.
struct GroupLinks {
  int ranks = 1;  // of a group
  // Ring edges from a rank of the node to one elsewhere. For messages between stages, ranks that send to another node.
  int ring_edges = 0;
  // Of what the ranks of the node send when each sends every rank of its group (itself included) an equal part: the
  // parts for other nodes, in payloads of a rank.
  double exchanged_payloads = 0.0;

  bool crosses_nodes() const { return ring_edges > 0; }
  bool operator==(const GroupLinks&) const = default;
};
GroupLinks group_links(int world, RankSteps steps, int ranks_per_node);
GroupLinks group_links(const Mesh& mesh, Group group, int ranks_per_node);

// Bytes that leave the node of `links` in one collective of every group, with the payload that counters.h counts:
//
//   all_gather, reduce_scatter   ring_edges (n - 1) / n payload
//   all_reduce                   twice that
//   all_to_all                   exchanged_payloads payload
//   broadcast, a message         ring_edges payload
double node_egress_bytes(const GroupLinks& links, CollectiveOp op, double payload);

// What one group has when all of its kind communicate: `inside` where none leaves a node; otherwise the latency of
// `between`, and its share of what goes out of a node, but no more than inside. Where one kind's groups leave a node
// the adapters are all theirs, until others use them.
LinkCost shared_link(const GroupLinks& links, const LinkCost& inside, const LinkCost& between_nodes);

// Why so many ranks do not fill nodes, with the nearest numbers that do; empty if they do or fit into one node.
// Training does not need it, and is not held to it.
std::vector<std::string> topology_faults(int world, int ranks_per_node);

}  // namespace weft
