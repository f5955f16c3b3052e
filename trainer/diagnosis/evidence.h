// Measurements of a run beside the figures of its program and hardware, for the rules to judge.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/costs/hardware.h"
#include "trainer/diagnosis/program_figures.h"
#include "trainer/diagnosis/run_outputs.h"

namespace weft {

// The machine that a run is judged by.
struct RunHardware : Hardware {
  std::optional<std::int64_t> usable_memory = {};  // bytes of a rank that a plan may fill; absent if unknown
  double reached_flops = 0.0;                      // operations a second of a rank in training, in 16 bits or float32
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

// Bytes that leave the busiest node when shards of parameters and gradients are exchanged (topology.h). `communication`
// has the counts, summed over ranks.
double node_egress_bytes(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

// Seconds of a step for this exchange if nothing hides it, without latencies. It is the larger of the time out of the
// busiest node and the time of a rank's traffic inside its node.
double exchange_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

// Seconds that the links of a rank are busy: the same with latencies, and exchanges one after the other.
double link_seconds(const CommunicationCounters& communication, const Mesh& mesh, const RunHardware& hardware);

// Where a figure comes from.
enum class Basis : std::uint8_t {
  measured,   // counted by the run's communicators or ledgers, or timed in its traces
  predicted,  // read off the compiled program or its dry run: bytes and counts, no times
  modelled,   // seconds from operations, bytes, and the figures of a row of hardware
};
constexpr auto enum_names(Basis) {
  return name_list("measured", "predicted", "modelled");
}

// A figure of the run beside the figure that it is compared with.
struct EvidenceLine {
  std::string what;
  std::string value, expected;
  std::string source;  // the file or hardware row that holds the value
  Basis basis = Basis::measured;
};

// Time of a step that a fault costs. Measured: shown by the traces of one rank, named in `source`; a change saves at
// most this time.
struct StepCost {
  double seconds = 0.0;
  Basis basis = Basis::measured;
  std::string source = {};
};

// Memory of the fullest rank that a fault costs. Measured: bytes above the prediction. Predicted: bytes above the
// prediction for the changed setting.
struct MemoryCost {
  std::int64_t bytes = 0;
  Basis basis = Basis::measured;
  std::string source = {};
};

// Compute actions of one segment and kind.
struct TracedCompute {
  double least = 0.0;       // seconds, over all microbatches and steps: disturbances only add time
  int a_step = 0;           // how often
  bool comparable = false;  // is_comparable (compute_times.h)
};

// A gather or reduction of the rank's list that communicates.
struct TracedExchange {
  Op op = Op::unshard;
  int unit = 0;
  Group group = Group::dp_shard;  // of the unit
  std::int64_t bytes = 0;         // payload
  bool again = false;             // gather: the unit was gathered earlier in the step; reduction: another one follows
  bool late = false;              // gather: no computation in the list between it and its first use
  // Mean seconds per step that computation waited for the exchange. In each step the wait of the group's traced rank
  // that waited least counts, so lateness of other ranks is left out. If all lanes take turns, the wait is the whole
  // span. Otherwise it begins when the compute lane has come to the first reader of the gathered parameters and the
  // reader's message is there. For a reduction it begins when the lane has come to WAIT_REDUCE of the unit or to
  // GRAD_NORM.
  double wait = 0.0;

  bool gathers() const { return is_gather(op); }
};

struct TracedRank {
  int rank = 0, pipeline_rank = 0;
  std::map<std::pair<std::string, Op>, TracedCompute> computed;  // by name of the segment
  std::vector<TracedExchange> exchanges;                         // in the order of the list

  double compute_seconds() const;  // of a step, at the least times
};

// Throws Error (request) if a trace does not belong to the configuration's program.
std::vector<TracedRank> traced_ranks(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces);

// Counts of the communicators in the run's last step, summed over ranks.
struct MeasuredExchange {
  std::int64_t gathers = 0, gather_bytes = 0;
  CommunicationCounters exchange;  // the groups and operations of ProgramFigures::exchange
};

struct RunEvidence {
  const RunOutputs& run;
  Mesh mesh;
  std::string hardware_name;  // as given by the user
  RunHardware hardware;
  ProgramFigures program;
  MeasuredExchange measured = {};
  // The last consecutive steps with the last step's hashes and exchange, without the first two of them. Caches, pools
  // and threads are warm after two steps. The last step alone if there are no more than two.
  std::span<const StepMetrics> steady = {};
  double step_seconds = 0.0;            // median of `steady`
  std::vector<TracedRank> traced = {};  // empty without traces

  const Config& config() const { return run.config; }
  // Modelled: products of the step at this rate, spread evenly over ranks.
  double compute_seconds(double flops_per_second) const;
  // Bytes of a rank that a plan may fill beside the measured peak (Verdict::limit); absent if its memory is unknown.
  std::optional<std::int64_t> headroom_bytes() const;
  std::int64_t peak_bytes() const;  // measured, of the fullest rank in any steady step
};

// Seconds of one rank per step, averaged over the traced steps.
struct TracedWait {
  int rank = 0;
  double seconds = 0.0;
};

// The longest time that a rank's computation waited for exchanges that `counts` selects; absent without traces.
std::optional<TracedWait> most_waiting(const RunEvidence& evidence,
                                       const std::function<bool(const TracedExchange&)>& counts);

// The traced wait for the selected exchanges, described by `what`; absent if the traces show none. Without traces:
// `modelled`, if positive.
std::optional<StepCost> waiting_cost(const RunEvidence& evidence,
                                     const std::function<bool(const TracedExchange&)>& counts, const std::string& what,
                                     const StepCost& modelled = {});

// `hardware` as in run_hardware(). `run` must outlive the evidence. Throws Error (request) if the counters or traces do
// not belong to the configuration's program.
RunEvidence gather_evidence(const RunOutputs& run, const std::string& hardware = {});

}  // namespace weft
