// Memory against its prediction, and which assumption of the prediction did not hold.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trainer/diagnosis/rules.h"
#include "trainer/step_plan.h"

namespace weft {
namespace {

constexpr const char* summary_file = "summary.json";

// What the prediction takes for granted, by bucket.
std::string_view assumption_of(Bucket bucket) {
  switch (bucket) {
    case Bucket::sharded_parameters:
    case Bucket::replicated_parameters:
    case Bucket::sharded_gradients:
    case Bucket::optimizer_state:
      return "the units that were planned are those that ran";
    case Bucket::unsharded_parameters:
      return "full parameters live from UNSHARD to RESHARD of the program";
    case Bucket::unsharded_gradients:
      return "gradients live from their first addition to the end of their reduction";
    case Bucket::activations:
      return "segments keep what they declare, routed tokens up to their bound";
    case Bucket::moe_routing:
      return "tokens are routed evenly";
    case Bucket::communication:
      return "buffers of an exchange live while it runs";
    case Bucket::workspace:
      return "libraries need no workspace to speak of";
  }
  return "";
}

// Of what a rank holds, routed rows count as activations in the prediction.
std::int64_t excess(const RankMemory& memory, Bucket bucket) {
  if (bucket == Bucket::moe_routing) return 0;
  std::int64_t bytes = memory.measured[bucket] - memory.predicted[bucket];
  if (bucket == Bucket::activations)
    bytes += memory.measured[Bucket::moe_routing] - memory.predicted[Bucket::moe_routing];
  return bytes;
}

EvidenceLine line_of(const RankMemory& memory, Bucket bucket) {
  return {fmt::format("{} of rank {}", name_of(bucket), memory.rank), fmt::format("{} bytes", memory.measured[bucket]),
          fmt::format("{}; assumed: {}", memory.predicted[bucket], assumption_of(bucket)), summary_file};
}

// What rows arrive where is the router's choice: the rank with most of them beside the mean of its stage's.
void add_routing(const RunEvidence& evidence, DiagnosedFault& finding, const RankMemory& memory) {
  if (memory.measured[Bucket::moe_routing] == 0) return;
  const int stage = evidence.mesh.coordinates(memory.rank).pp;
  double sum = 0.0, ranks = 0.0;
  for (const RankMemory& other : evidence.run.memory) {
    if (evidence.mesh.coordinates(other.rank).pp != stage) continue;
    sum += static_cast<double>(other.measured[Bucket::moe_routing]);
    ++ranks;
  }
  finding.evidence.push_back({fmt::format("moe_routing of rank {}", memory.rank),
                              fmt::format("{} bytes", memory.measured[Bucket::moe_routing]),
                              fmt::format("{:.0f} on the mean of its stage", sum / ranks), summary_file});
}

}  // namespace

// Static buckets are exact. Transient ones are taken at one instant and without what libraries need, so their sum may
// be off by a tenth; beyond that an assumption failed, that of the bucket with the largest excess.
RuleVerdict check_memory(const RunEvidence& evidence) {
  constexpr double allowed = 0.1;
  constexpr std::int64_t small = 1 << 20;  // token ids and the totals of a step, which no plan counts, are kilobytes
  DiagnosedFault finding;
  std::int64_t largest = 0;
  bool planned_wrong = false;
  for (const RankMemory& memory : evidence.run.memory) {
    for (const Bucket bucket : differing_static_buckets(memory.predicted, memory.measured)) {
      finding.evidence.push_back(line_of(memory, bucket));
      finding.sentence = "parameters, gradients or states that live all run differ from the plan: a bug of Weft";
      largest = std::max(largest, std::abs(excess(memory, bucket)));
      planned_wrong = true;
    }
    const std::int64_t more = memory.measured.total() - memory.predicted.total();
    const double of_prediction = static_cast<double>(more) / static_cast<double>(memory.predicted.total());
    if (more <= small || of_prediction <= allowed) continue;
    largest = std::max(largest, more);
    Bucket worst = Bucket::workspace;
    for (std::size_t b = 0; b < bucket_count; ++b) {
      const auto bucket = static_cast<Bucket>(b);
      if (excess(memory, bucket) > excess(memory, worst)) worst = bucket;
    }
    if (finding.sentence.empty()) {
      finding.sentence = fmt::format("rank {} holds {:.0f} % more than predicted, most of it {}", memory.rank,
                                     100.0 * of_prediction, name_of(worst));
    }
    finding.evidence.push_back(line_of(memory, worst));
    if (worst == Bucket::activations) add_routing(evidence, finding, memory);
  }
  if (evidence.run.steps.size() > 2) {
    const auto allocating = std::count_if(evidence.steady.begin(), evidence.steady.end(),
                                          [](const StepMetrics& step) { return step.system_allocations > 0; });
    // A pool may still grow once where routed tokens are more than ever before.
    if (2 * allocating > std::ssize(evidence.steady)) {
      if (finding.sentence.empty()) finding.sentence = "steps go on asking the system for memory after the first two";
      finding.evidence.push_back(
          {"allocations by the system in a step",
           fmt::format("{}, some in {} of {} steps", evidence.run.steps.back().system_allocations, allocating,
                       evidence.steady.size()),
           "0: a step uses the blocks of the one before", "metrics.jsonl"});
    }
  }
  if (finding.sentence.empty()) {
    if (evidence.run.memory.empty()) return RuleVerdict::unchecked("needs summary.json, which a run writes at its end");
    return RuleVerdict::silent();
  }
  if (largest > 0) finding.bytes = largest;
  if (!planned_wrong) {
    finding.changes = {{"hardware.memory", "", "what is planned for a rank must leave room for this"}};
  }
  return RuleVerdict::found(std::move(finding));
}

}  // namespace weft
