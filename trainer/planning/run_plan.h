// What a run will take and do on given hardware, before a rank is started: memory of every rank that differs from
// others, with what is live at its peak; what is communicated, and how much of it leaves a node; time. Read off the
// programs that the run would execute: memory from a dry run of each (dry_run.h), time from their simulation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/costs/hardware.h"
#include "trainer/costs/verdict.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/rank_classes.h"

namespace weft {

// Tensors of one kind that are live at a peak.
struct LiveItem {
  Bucket bucket = Bucket::workspace;
  std::string what = {};  // a unit or a segment; empty for what the run keeps
  std::optional<int> microbatch = {};
  std::int64_t bytes = 0;

  bool operator==(const LiveItem&) const = default;
};

struct RankPlan {
  RankClass ranks;
  BucketBytes peak;  // with tokens routed evenly
  // The largest sum that any routing can lead to; absent where routing does not decide it: without experts, or where
  // one rank holds all of them.
  std::optional<std::int64_t> worst_bytes = {};
  std::string peak_action = {};     // "0B1 blocks.3.mlp"; "the start of the step" where nothing exceeds it
  std::vector<LiveItem> live = {};  // largest first; together they are `peak`
  CommunicationCounters communication = {};
  std::int64_t saved_bytes = 0;  // of a checkpoint
};

// One kind of call in a step.
struct GroupTraffic {
  std::string group;
  CollectiveOp op = CollectiveOp::all_gather;
  CommunicationCount all;  // summed over all ranks, as metrics.jsonl has it
  // Of the rank with most: payload as counters.h counts it, and what a ring makes a rank send of it.
  std::int64_t payload = 0;
  double sent = 0.0;
  double node_egress = 0.0;  // bytes that leave the node which most leaves, by all its ranks; bounds with routed tokens

  bool operator==(const GroupTraffic&) const = default;
};

struct StepTime {
  double seconds = 0.0;
  double bubble = 0.0;                                     // share of the step, mean over ranks
  double exposed_gathers = 0.0, exposed_reductions = 0.0;  // seconds that compute waits, of the rank with most
  double mfu = 0.0;                                        // of the peak rate of all cards
  // In which the adapters of the node that sends most are busy, at their full rate: no step is shorter. 0 where costs
  // are given, of which nobody says what leaves a node.
  double adapters = 0.0;

  bool operator==(const StepTime&) const = default;
};

struct RunPlan {
  std::string layout, schedule, residency;
  int world = 1, nodes = 1;
  std::int64_t microbatches = 1;
  ParameterCount parameters;
  double flops_per_token = 0.0, step_flops = 0.0;  // of the model: nothing that is recomputed counts
  std::vector<RankPlan> ranks;                     // in the order of the mesh
  std::size_t fullest = 0;                         // of `ranks`
  std::vector<GroupTraffic> communication;
  // Out of the node that sends most, by all its ranks, as the program's tables have it. The kinds of `communication`
  // add up to more where the most of each leaves another node.
  double node_egress_bytes = 0.0;
  StepTime time;
  Verdict verdict;
  // Of a checkpoint, by the rank that saves most, and the memory of the host that its copies take, for good.
  std::int64_t saved_bytes = 0, host_bytes = 0;

  const BucketBytes& peak() const { return ranks[fullest].peak; }
  // Of the rank that takes most under the worst routing; absent where no routing decides, or it was not asked for.
  std::optional<std::int64_t> worst_bytes() const;
  std::int64_t sent_bytes() const;  // by the rank that sends most, over all kinds of calls
};

// What a step is planned under. The verdict is of even routing; the worst takes a dry run of each class of ranks more.
enum class PlanRoutings { even, even_and_worst };

// Throws Error (request) where the configuration cannot be compiled, and with topology_faults(). The device that is
// planned for is the hardware's, whatever run.device says. What actions cost is modelled for the hardware, or read from
// the table that pipeline.costs names.
RunPlan plan_run(const Config& config, const Hardware& hardware, PlanRoutings routings = PlanRoutings::even_and_worst);

// What decides between runs, for less work: the same figures as plan_run(), of even routing. Throws as it does.
struct RunOutline {
  int world = 0;
  BucketBytes peak;  // of the fullest rank
  Verdict verdict;
  StepTime time;
};
RunOutline outline_run(const Config& config, const Hardware& hardware);
// What the fullest rank takes with the least that the configuration leaves to be kept (chosen_timing.h), and even
// routing: it fits where outline_run's does. Throws as outline_run does.
Verdict least_need(const Config& config, const Hardware& hardware);
// Whether that fits. Stops at the first rank that does not.
bool fits_on(const Config& config, const Hardware& hardware);

// The time alone; `program` is that of the first rank, run.device that which is planned for.
StepTime step_time(const Config& config, const Mesh& mesh, const Program& program, const Hardware& hardware);

// The memory alone, of each class of ranks.
std::vector<RankPlan> plan_ranks(StepPrograms& programs, PlanRoutings routings = PlanRoutings::even_and_worst);

}  // namespace weft
