#include "trainer/diagnosis/run_hardware.h"

#include <algorithm>
#include <array>

namespace weft {
namespace {

// Over which parameters are gathered and gradients reduced. Islands are inside a node.
constexpr std::array data_groups = {Group::dp_shard,  Group::dp_shard_cp,   Group::dp_replicate,
                                    Group::edp_shard, Group::edp_replicate, Group::tokens};

double ring_bytes(CollectiveOp op, double payload, std::size_t ranks) {
  const auto n = static_cast<double>(ranks);
  switch (op) {
    case CollectiveOp::all_gather:
    case CollectiveOp::reduce_scatter:
      return payload * (n - 1.0) / n;
    case CollectiveOp::all_reduce:
      return 2.0 * payload * (n - 1.0) / n;
    case CollectiveOp::all_to_all:
    case CollectiveOp::broadcast:
    case CollectiveOp::send:
    case CollectiveOp::receive:
    case CollectiveOp::barrier:
      break;
  }
  return 0.0;
}

// By kind of group: what the ring of one of its groups sends over each of its edges. Every rank of a group has counted
// the payload.
template <typename Add>
void for_each_ring(const CommunicationCounters& communication, const Mesh& mesh, const Add& add) {
  for (const auto& [key, count] : communication) {
    for (const Group group : data_groups) {
      if (name_of(group) != key.group) continue;
      const auto groups = mesh.groups(group);
      const std::size_t ranks = groups.front().size();
      add(group, groups, ring_bytes(key.op, static_cast<double>(count.bytes) / mesh.world(), ranks));
    }
  }
}

}  // namespace

RunHardware run_hardware(const Config& config, const std::string& name, DType compute) {
  const HardwareConfig& own = config.hardware;
  const std::string& row_name = name.empty() ? own.name : name;
  const Hardware& row = row_name.empty() ? hardware_of(config.run.device) : find_hardware(row_name);
  RunHardware hardware{.name = std::string(row.name),
                       .ranks_per_node = own.ranks_per_node.value_or(row.ranks_per_node),
                       .memory = own.memory,
                       .inside = row.inside,
                       .between = row.between};
  if (config.memory_budget)
    hardware.memory = std::min(hardware.memory.value_or(*config.memory_budget), *config.memory_budget);
  // The table's rate between nodes is that of one rank, each with an adapter of its own.
  hardware.node_bytes_per_second =
      own.node_bytes_per_second.value_or(row.between.bytes_per_second * hardware.ranks_per_node);
  if (own.node_bytes_per_second)
    hardware.between.bytes_per_second = *own.node_bytes_per_second / hardware.ranks_per_node;
  if (own.link_bytes_per_second) hardware.inside.bytes_per_second = *own.link_bytes_per_second;
  hardware.flops_per_second = compute == DType::float32 ? row.flops_per_second_float32 : row.flops_per_second_16bit;
  // What the table knows of is reached; half of a peak that is given, as there, where nobody said what of it.
  if (own.flops_per_second) hardware.flops_per_second = *own.flops_per_second * own.reached.value_or(0.5);
  return hardware;
}

bool crosses_nodes(const Mesh& mesh, Group group, const RunHardware& hardware) {
  for (const std::vector<int>& ranks : mesh.groups(group)) {
    const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
    if (*least / hardware.ranks_per_node != *most / hardware.ranks_per_node) return true;
  }
  return false;
}

double node_egress_bytes(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware) {
  std::vector<double> egress(static_cast<std::size_t>((mesh.world() - 1) / hardware.ranks_per_node + 1), 0.0);
  for_each_ring(communication, mesh, [&](Group, const auto& groups, double bytes) {
    for (const std::vector<int>& ranks : groups) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const int node = ranks[i] / hardware.ranks_per_node;
        if (node != ranks[(i + 1) % ranks.size()] / hardware.ranks_per_node)
          egress[static_cast<std::size_t>(node)] += bytes;
      }
    }
  });
  return *std::max_element(egress.begin(), egress.end());
}

double exchange_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware) {
  double inside = 0.0;
  for_each_ring(communication, mesh, [&](Group group, const auto&, double bytes) {
    if (!crosses_nodes(mesh, group, hardware)) inside += bytes / hardware.inside.bytes_per_second;
  });
  return std::max(inside, node_egress_bytes(communication, mesh, hardware) / hardware.node_bytes_per_second);
}

double link_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware) {
  double seconds = 0.0;
  for (const auto& [key, count] : communication) {
    for (const Group group : data_groups) {
      if (name_of(group) != key.group || count.count == 0) continue;
      const LinkCost& link = crosses_nodes(mesh, group, hardware) ? hardware.between : hardware.inside;
      const double payload = static_cast<double>(count.bytes) / static_cast<double>(count.count);
      const auto ranks = static_cast<int>(mesh.groups(group).front().size());
      seconds += static_cast<double>(count.count) / mesh.world() * link_seconds(link, key.op, payload, ranks);
    }
  }
  return seconds;
}

}  // namespace weft
