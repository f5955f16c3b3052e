// The machine that a run is judged by: a row of the hardware table, overridden by the keys of [hardware].
#pragma once

#include <optional>
#include <string>

#include "trainer/costs/hardware.h"

namespace weft {

struct RunHardware {
  std::string name;
  int ranks_per_node = 1;
  std::optional<std::int64_t> memory = {};  // bytes of a rank that a run may fill; absent if unknown
  double node_bytes_per_second = 0.0;       // out of a node, all its adapters together
  LinkCost inside, between_nodes;           // of one rank, and of a node with all its adapters
  double flops_per_second = 0.0;            // reached in training, of a rank, in 16 bits or float32
};

// `name`: a row of the table. If empty: hardware.name, or else the row that corresponds to run.device. `compute`: the
// dtype of dense parts. shard.memory_budget bounds the memory as well. Throws Error (request) for an unknown name.
RunHardware run_hardware(const Config& config, const std::string& name, DType compute);

// Whether computation and communication share one channel on the run's device, so that nothing overlaps.
bool lanes_take_turns(const Config& config);

// The link of one group of this kind while all groups of the kind communicate (topology.h).
LinkCost link_of(const Mesh& mesh, Group group, const RunHardware& hardware);
// Whether a group of this kind has ranks on several nodes. Nodes hold neighbouring ranks.
bool crosses_nodes(const Mesh& mesh, Group group, const RunHardware& hardware);

// Bytes that leave the busiest node when shards of parameters and gradients are exchanged. `communication` has the
// counts, summed over ranks. Rings run in the order of ranks; each ring that crosses nodes leaves a node once. A ring
// over n ranks sends (n - 1) / n of the payload of a gather or reduction, and twice that of an all-reduce.
double node_egress_bytes(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

// Seconds of a step for this exchange if nothing hides it, without latencies. It is the larger of the time out of the
// busiest node and the time of a rank's traffic inside its node.
double exchange_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

// Seconds that the links of a rank are busy: the same with latencies, and exchanges one after the other.
double link_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

}  // namespace weft
