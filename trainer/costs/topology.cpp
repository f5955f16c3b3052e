#include "trainer/costs/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// The divisors of `world` nearest to `number`, below and above.
std::string nearest_divisors(int world, int number) {
  std::optional<int> below, above;
  for (int divisor = 1; divisor <= world; ++divisor) {
    if (world % divisor != 0) continue;
    if (divisor < number) below = divisor;
    if (divisor > number && !above) above = divisor;
  }
  return below && above ? fmt::format("{} or {}", *below, *above) : fmt::format("{}", below ? *below : *above);
}

}  // namespace

RankSteps island_steps(const Mesh& mesh, Group shard_group, int ranks) {
  const RankSteps group = mesh.steps(shard_group);
  require(ranks >= 1 && group.count % ranks == 0, "islands divide their group");
  return {group.stride, ranks};
}

GroupLinks node_links(int world, RankSteps steps, int ranks_per_node, int begin) {
  const int end = std::min(begin + ranks_per_node, world);
  GroupLinks links{.ranks = steps.count};
  std::int64_t elsewhere = 0;  // pairs of a rank in the node and a rank of its group outside
  for (int rank = begin; rank < end; ++rank) {
    const int place = steps.place(rank), first = rank - place * steps.stride;
    const int next = place + 1 < steps.count ? rank + steps.stride : first;
    links.ring_edges += next < begin || next >= end;
    // Places [from, to) of the group lie in the node.
    const int from = std::max(0, (begin - first + steps.stride - 1) / steps.stride);
    const int to = std::min(steps.count, (end - first + steps.stride - 1) / steps.stride);
    elsewhere += steps.count - (to - from);
  }
  links.exchanged_payloads = static_cast<double>(elsewhere) / steps.count;
  return links;
}

GroupLinks group_links(int world, RankSteps steps, int ranks_per_node) {
  GroupLinks most{.ranks = steps.count};
  // Nodes are alike where they hold whole groups, or equal parts of each of theirs.
  const int span = steps.stride * steps.count;
  const bool parts =
      span % ranks_per_node == 0 && (steps.stride % ranks_per_node == 0 || ranks_per_node % steps.stride == 0);
  const bool alike = world % ranks_per_node == 0 && (parts || ranks_per_node % span == 0);
  const int end = alike ? ranks_per_node : world;
  for (int begin = 0; begin < end && steps.count > 1; begin += ranks_per_node) {
    const GroupLinks links = node_links(world, steps, ranks_per_node, begin);
    most.ring_edges = std::max(most.ring_edges, links.ring_edges);
    most.exchanged_payloads = std::max(most.exchanged_payloads, links.exchanged_payloads);
  }
  return most;
}

GroupLinks group_links(const Mesh& mesh, Group group, int ranks_per_node) {
  return group_links(mesh.world(), mesh.steps(group), ranks_per_node);
}

double ring_bytes(CollectiveOp op, double payload, int ranks) {
  const double part = payload * (ranks - 1) / ranks;
  switch (op) {
    case CollectiveOp::all_gather:
    case CollectiveOp::reduce_scatter:
    case CollectiveOp::all_to_all:
      return part;
    case CollectiveOp::all_reduce:
      return 2.0 * part;
    case CollectiveOp::broadcast:
    case CollectiveOp::send:
      return payload;
    case CollectiveOp::receive:
    case CollectiveOp::barrier:
      return 0.0;
  }
  return 0.0;
}

double node_egress_bytes(const GroupLinks& links, CollectiveOp op, double payload) {
  if (op == CollectiveOp::all_to_all) return links.exchanged_payloads * payload;
  return links.ring_edges * ring_bytes(op, payload, links.ranks);
}

LinkCost shared_link(const GroupLinks& links, const LinkCost& inside, const LinkCost& between_nodes) {
  if (!links.crosses_nodes()) return inside;
  const auto share = [&](double parts) {
    return std::min(inside.bytes_per_second, between_nodes.bytes_per_second / parts);
  };
  // An exchange takes (n - 1) / n payload / rate (cost_model.h). This must equal the bytes leaving the node divided by
  // the rate of its adapters.
  const double exchanged = links.exchanged_payloads * links.ranks / (links.ranks - 1);
  return {.latency = between_nodes.latency,
          .bytes_per_second = share(links.ring_edges),
          .exchange_bytes_per_second = share(exchanged),
          .adapters = AdapterRates{.ring = between_nodes.bytes_per_second / links.ring_edges,
                                   .exchange = between_nodes.bytes_per_second / exchanged}};
}

void require_full_nodes(int world, int ranks_per_node) {
  if (world <= ranks_per_node || world % ranks_per_node == 0) return;
  const int nodes = world / ranks_per_node, fewer = nodes * ranks_per_node, more = fewer + ranks_per_node;
  fail_request(
      "{0} ranks do not fill nodes of {1} ranks: {2} x {1} = {3}, {4} x {1} = {5}; take {3} or {5} ranks by the "
      "degrees of [parallelism], in a search by --world, or set hardware.ranks_per_node to a divisor of {0}, such as "
      "{6}",
      world, ranks_per_node, nodes, fewer, nodes + 1, more, nearest_divisors(world, ranks_per_node));
}

}  // namespace weft
