#include "trainer/diagnosis/run_hardware.h"

#include <algorithm>
#include <array>

#include "trainer/costs/topology.h"

namespace weft {
namespace {

// Groups that gather parameters and reduce gradients. Islands are left out, because they are inside a node.
constexpr std::array data_groups = {Group::dp_shard,  Group::dp_shard_cp,   Group::dp_replicate,
                                    Group::edp_shard, Group::edp_replicate, Group::tokens};

// Calls `add` per kind of group, with the bytes that a ring of one group sends over each of its edges. The payload was
// counted by every rank of a group.
template <typename Add>
void for_each_ring(const CommunicationCounters& communication, const Mesh& mesh, const Add& add) {
  for (const auto& [key, count] : communication) {
    for (const Group group : data_groups) {
      if (name_of(group) != key.group) continue;
      const auto groups = mesh.groups(group);
      const auto ranks = static_cast<int>(groups.front().size());
      add(group, groups, ring_bytes(key.op, static_cast<double>(count.bytes) / mesh.world(), ranks));
    }
  }
}

}  // namespace

RunHardware run_hardware(const Config& config, const std::string& name, DType compute) {
  Config named = config;
  if (!name.empty()) named.hardware.name = name;
  const Hardware card = hardware_of(named);
  RunHardware hardware{.name = std::string(card.name),
                       .ranks_per_node = card.node_ranks(),
                       .node_bytes_per_second = card.node_bytes_per_second.value,
                       .inside = card.inside(),
                       .between_nodes = card.between_nodes()};
  if (card.memory) hardware.memory = static_cast<std::int64_t>(card.memory->value - card.reserved_memory.value);
  if (config.memory_budget) {
    hardware.memory = std::min(hardware.memory.value_or(*config.memory_budget), *config.memory_budget);
  }
  hardware.flops_per_second = card.flops_per_second(compute).value * card.reached.value;
  return hardware;
}

bool lanes_take_turns(const Config& config) {
  return config.run.device == DeviceKind::cpu;
}

LinkCost link_of(const Mesh& mesh, Group group, const RunHardware& hardware) {
  return shared_link(group_links(mesh, group, hardware.ranks_per_node), hardware.inside, hardware.between_nodes);
}

bool crosses_nodes(const Mesh& mesh, Group group, const RunHardware& hardware) {
  return group_links(mesh, group, hardware.ranks_per_node).crosses_nodes();
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
      const LinkCost link = link_of(mesh, group, hardware);
      const double payload = static_cast<double>(count.bytes) / static_cast<double>(count.count);
      const auto ranks = static_cast<int>(mesh.groups(group).front().size());
      seconds += static_cast<double>(count.count) / mesh.world() * link_seconds(link, key.op, payload, ranks);
    }
  }
  return seconds;
}

}  // namespace weft
