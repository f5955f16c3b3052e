#include "trainer/costs/hardware.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Of a data sheet's dense rate, what models of this kind reach in training: published runs are at 40 to 60 %.
constexpr double reached = 0.5;
// NVIDIA's data sheets of H100 SXM and H200 SXM: 989.4 TFLOP/s dense in bfloat16, 66.9 in float32; NVLink 900 GB/s in
// both directions together. A node of eight has one network adapter of 400 Gbit/s for each GPU. Latencies are those of
// a small message: microseconds over NVLink, about ten over the network.
constexpr LinkCost nvlink{3e-6, 450e9}, network{1e-5, 50e9};
// A rank is a thread on one core: about half of what README.md ("Speed on the CPU") measures on two. Links are copies
// in shared memory and the meeting of threads.
constexpr LinkCost shared_memory{2e-6, 8e9};

constexpr std::array<Hardware, 3> table = {
    Hardware{"h100", "NVIDIA H100 SXM, nodes of 8 with NVLink, 400 Gbit/s a GPU between nodes", reached * 66.9e12,
             reached * 989.4e12, 8, nvlink, network},
    Hardware{"h200", "NVIDIA H200 SXM: the rates of an H100 and more memory", reached * 66.9e12, reached * 989.4e12, 8,
             nvlink, network},
    Hardware{"cpu", "a core for each rank, all in one machine", 100e9, 200e9, 1 << 20, shared_memory, shared_memory}};

bool crosses_nodes(const Mesh& mesh, Group group, int ranks_per_node) {
  for (const std::vector<int>& ranks : mesh.groups(group)) {
    const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
    if (*least / ranks_per_node != *most / ranks_per_node) return true;
  }
  return false;
}

}  // namespace

std::span<const Hardware> known_hardware() {
  return table;
}

const Hardware& find_hardware(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Hardware& hardware : table) {
    if (hardware.name == name) return hardware;
    names.push_back(hardware.name);
  }
  fail_request("hardware {} is not known; known are {}", name, fmt::join(names, ", "));
}

const Hardware& hardware_of(DeviceKind device) {
  return find_hardware(device == DeviceKind::cpu ? "cpu" : "h200");
}

HardwareCosts hardware_costs(const Hardware& hardware, const Config& config, const Mesh& mesh) {
  const bool whole = config.precision_of(Family::dense).compute == DType::float32;
  const double seconds = 1.0 / (whole ? hardware.flops_per_second_float32 : hardware.flops_per_second_16bit);
  HardwareCosts costs{seconds, seconds, {}};
  for (const Group group : all_groups) {
    costs.links[group] = crosses_nodes(mesh, group, hardware.ranks_per_node) ? hardware.between : hardware.inside;
  }
  // Islands are neighbours.
  costs.links[Group::dp_island] = costs.links[Group::edp_island] = hardware.inside;
  return costs;
}

}  // namespace weft
