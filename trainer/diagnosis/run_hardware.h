// The machine that a run is judged by: a row of the table of hardware, and in its place what [hardware] says.
#pragma once

#include <optional>
#include <string>

#include "trainer/costs/hardware.h"

namespace weft {

struct RunHardware {
  std::string name;
  int ranks_per_node = 1;
  std::optional<std::int64_t> memory = {};  // bytes of a rank that a run may fill; nothing where nobody said
  double node_bytes_per_second = 0.0;       // out of a node, all its adapters together
  LinkCost inside, between_nodes;           // of one rank, and of a node with all its adapters
  double flops_per_second = 0.0;            // of a rank, as training reaches them, in 16 bits or float32

  bool operator==(const RunHardware&) const = default;
};

// `name` is a row of the table; empty: hardware.name, and without one the row like run.device. `compute` is the dtype
// of dense parts. shard.memory_budget bounds the memory as well. Throws Error (request) for a name that is not known.
RunHardware run_hardware(const Config& config, const std::string& name, DType compute);

// Whether nothing overlaps on the device that the run had: one channel for computation and communication.
bool lanes_take_turns(const Config& config);

// What one group of this kind has when all of them communicate (topology.h).
LinkCost link_of(const Mesh& mesh, Group group, const RunHardware& hardware);
// Whether a group of this kind has ranks on several nodes, which hold neighbouring ranks.
bool crosses_nodes(const Mesh& mesh, Group group, const RunHardware& hardware);

// Bytes that leave the busiest node when the shards of parameters and gradients are exchanged as `communication` counts
// it, summed over ranks: rings in the order of ranks, of which each that crosses nodes leaves a node once. A ring over
// n ranks sends (n - 1) / n of a gather's or reduction's payload, and twice that of an all-reduce.
double node_egress_bytes(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

// Seconds of a step that this exchange takes where nothing hides it, without latencies: what leaves the busiest node,
// or what a rank moves inside its node, whichever takes longer.
double exchange_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

// The same with latencies and every exchange behind the one before it: what the links of a rank are busy for.
double link_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

}  // namespace weft
