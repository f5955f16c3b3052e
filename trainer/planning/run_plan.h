// The plan of a run on given hardware, made before any rank starts. It has the memory of every rank class with the
// tensors live at its peak. It also has the communication with the bytes that leave a node, and the time. Memory comes
// from a dry run (dry_run.h) of each program that the run would execute, time from a simulation of the programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "trainer/costs/hardware.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/step_forecast.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/step_programs.h"

namespace weft {

// Tensors of one kind that are live at a peak.
struct LiveItem {
  Bucket bucket = Bucket::workspace;
  std::string what = {};  // a unit or a segment; empty for bytes kept all step
  std::optional<int> microbatch = {};
  std::int64_t bytes = 0;
};

struct RankPlan {
  RankClass ranks;
  BucketBytes peak;  // with tokens routed evenly
  // The largest total over all routings. Absent if routing does not change the total: without experts, or if one rank
  // holds all experts.
  std::optional<std::int64_t> worst_bytes = {};
  std::string peak_action = {};     // "0B1 blocks.3.mlp"; "the start of the step" if no action exceeds it
  std::vector<LiveItem> live = {};  // largest first; together they are `peak`
  CommunicationCounters communication = {};
  LiveIntegral integral = {};    // from the program's tables
  std::int64_t saved_bytes = 0;  // of a checkpoint
  BucketBytes host = {};         // as DryRun::host
};

// One kind of call in a step.
struct GroupTraffic {
  std::string group;
  CollectiveOp op = CollectiveOp::all_gather;
  // Summed over all ranks, as in metrics.jsonl. Bytes of the largest runs are more than an int64 holds.
  std::int64_t count = 0;
  double bytes = 0.0;
  // Bytes of the rank with most: payload as counters.h counts it, and the bytes that a ring makes the rank send.
  std::int64_t payload = 0;
  double sent = 0.0;
  double node_egress = 0.0;  // bytes out of the node with most, of all its ranks; a bound for routed tokens
};

struct StepTime {
  double seconds = 0.0;
  double bubble = 0.0;  // share of the step, mean over ranks
  StepWaits waits = {};
  double mfu = 0.0;  // relative to the peak rate of all cards
  // Seconds that the adapters of the node that sends most are busy, at their full rate: a lower bound of the step. 0
  // with given costs, because those do not say how many bytes leave a node.
  double adapters = 0.0;

  bool operator==(const StepTime&) const = default;
};

struct RunPlan {
  std::string layout = {}, schedule = {}, residency = {};
  int world = 1, nodes = 1;
  std::int64_t microbatches = 1;
  ParameterCount parameters = {};
  double flops_per_token = 0.0, step_flops = 0.0;  // of the model, without recomputation
  std::vector<RankPlan> ranks = {};                // in the order of the mesh
  std::size_t fullest = 0;                         // index into `ranks`
  std::vector<GroupTraffic> communication = {};
  // Bytes out of the node that sends most, of all its ranks, as the program's tables have them. The sum of node_egress
  // over `communication` can be larger, because each kind may have another node with most.
  double node_egress_bytes = 0.0;
  StepTime time = {};
  std::vector<ByteSeconds> byte_seconds = {};  // by pipeline rank, in the simulated step
  std::vector<StepPart> path = {};             // of the critical path
  std::vector<StepPart> mean = {};             // of the mean rank
  // Collectives inside computation, and the seconds of them for which it waits. Both are empty with given costs.
  std::vector<StepPart> inside = {}, exposed = {};
  Verdict verdict = {};
  // Bytes of a checkpoint on the rank that saves most, and the host memory that its copies occupy for the whole run.
  std::int64_t saved_bytes = 0, host_bytes = 0;
  BucketBytes host = {};  // kept in host memory beside those, on the rank with most

  const BucketBytes& peak() const { return ranks[fullest].peak; }
  // Bytes of the fullest rank under the worst routing. Absent if routing changes no total, or if it was not asked for.
  std::optional<std::int64_t> worst_bytes() const;
  // The verdict under the worst routing; that of even routing if routing changes no total.
  Fit worst_fit() const;
  // The routing that larger sizes of this run are judged by: the worst if the run fits with it.
  Routing judging() const { return worst_fit() == Fit::fits ? Routing::worst : Routing::even; }
  // "fits with even routing, does not fit with worst routing"; one word if routing changes no total, or nothing is
  // judged.
  std::string fit_words() const;
  std::int64_t sent_bytes() const;  // by the rank that sends most, over all kinds of calls
};

// Routings that a step is planned for. The verdict uses even routing. The worst routing costs one more dry run per
// class of ranks.
enum class PlanRoutings { even, even_and_worst };

// Throws Error (request) if the configuration cannot be compiled, and as require_full_nodes() does. The plan uses the
// hardware's device and ignores run.device. Costs of actions are modelled for the hardware, or read from the table that
// pipeline.costs names.
RunPlan plan_run(const Config& config, const Hardware& hardware, PlanRoutings routings = PlanRoutings::even_and_worst);

// The figures that decide between runs, at less work: equal to those of plan_run() with the same routing. Peak and
// verdict are those of `routing`, the time always that of even routing. Throws as plan_run().
struct RunOutline {
  int world = 0;
  BucketBytes peak;  // of the fullest rank
  Verdict verdict;
  StepTime time;
};
RunOutline outline_run(const Config& config, const Hardware& hardware, Routing routing = Routing::even);
// Bytes of the fullest rank, with the smallest memory that the configuration's free choices allow
// (chosen_timing.h). The verdict fits if outline_run's fits. Throws as outline_run does.
Verdict least_need(const Config& config, const Hardware& hardware, Routing routing = Routing::even);

// Bytes of the fullest rank with what is reserved, under the worst routing. Absent if routing changes no total.
std::optional<std::int64_t> worst_need(const Config& config, const Hardware& hardware);

// The time alone. `program` is that of the first rank; run.device is the device planned for.
StepTime step_time(const Config& config, const Mesh& mesh, const Program& program, const Hardware& hardware);

// The memory alone, one entry per class of ranks.
std::vector<RankPlan> plan_ranks(StepPrograms& programs, PlanRoutings routings = PlanRoutings::even_and_worst);

}  // namespace weft
