// Compares memory with its prediction, and names the assumption of the prediction that did not hold. Compares what
// waits in host memory with the room that the device has.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "trainer/diagnosis/alternatives.h"
#include "trainer/diagnosis/diagnose.h"
#include "trainer/optimizer/update_plan.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// The assumption of the prediction for each bucket.
std::string_view assumption_of(Bucket bucket) {
  if (is_static(bucket)) return "the units that were planned are those that ran";
  switch (bucket) {
    case Bucket::unsharded_parameters:
      return "full parameters live from UNSHARD to RESHARD of the program";
    case Bucket::unsharded_gradients:
      return "gradients live from their first addition to the end of their reduction";
    case Bucket::activations:
      return "segments keep what they declare";
    case Bucket::moe_routing:
      return "every token has as many choices as the model says";
    case Bucket::communication:
      return "buffers of an exchange live while it runs";
    default:
      return "kernels take the workspace that they declare";
  }
}

std::int64_t excess(const RankMemory& memory, Bucket bucket) {
  return memory.measured[bucket] - memory.predicted[bucket];
}

EvidenceLine line_of(const RankMemory& memory, Bucket bucket) {
  return {fmt::format("{} of rank {}", name_of(bucket), memory.rank), fmt::format("{} bytes", memory.measured[bucket]),
          fmt::format("{}; assumed: {}", memory.predicted[bucket], assumption_of(bucket)), summary_file};
}

// The most bytes that a rank may hold: exactly the prediction, or those of the worst routing if routing decides.
class MemoryBounds {
 public:
  explicit MemoryBounds(const Config& config)
      : config_(config), routed_(routing_decides(config)), own_matrices_(!muon_groups(config).empty()) {}

  std::int64_t of(const RankMemory& memory) {
    const std::int64_t even = memory.predicted.total();
    if (!routed_ || memory.measured.total() <= even) return even;
    return worst(memory.rank);
  }
  std::string text_of(const RankMemory& memory) {
    if (!routed_) return fmt::format("{} bytes, exactly", memory.predicted.total());
    return fmt::format("at most {} bytes, whatever is routed where; {} with tokens routed evenly", of(memory),
                       memory.predicted.total());
  }

 private:
  // Ranks of one pipeline and tensor position hold the same bytes, except owners of whole matrices.
  std::int64_t worst(int rank) {
    if (!run_) run_.emplace(config_);
    const Coordinates at = run_->mesh().coordinates(rank);
    const auto [found, fresh] = worst_.try_emplace({at.pp, at.tp, own_matrices_ ? rank : 0});
    if (fresh) {
      const Program program = step_program(*run_, at);
      found->second = dry_peak(run_->config(), run_->mesh(), program, rank, Routing::worst).total();
    }
    return found->second;
  }

  const Config& config_;
  bool routed_, own_matrices_;
  std::optional<ResolvedRun> run_;
  std::map<std::tuple<int, int, int>, std::int64_t> worst_;
};

struct MemoryFindings {
  DiagnosedFault finding;
  bool planned_wrong = false;
  std::string note;

  void add(const MemoryCost& cost) {
    if (cost.bytes > finding.memory.value_or(MemoryCost{}).bytes) finding.memory = cost;
  }
};

void check_static(const RankMemory& memory, MemoryFindings& found) {
  for (const Bucket bucket : differing_static_buckets(memory.predicted, memory.measured)) {
    found.finding.evidence.push_back(line_of(memory, bucket));
    found.finding.sentence = "parameters, gradients or states that live all run differ from the plan: a bug of Weft";
    found.add({std::abs(excess(memory, bucket)), Basis::measured,
               fmt::format("{} of rank {} against the plan", name_of(bucket), memory.rank)});
    found.planned_wrong = true;
  }
}

void check_peak(const RunEvidence& evidence, const RankMemory& memory, MemoryBounds& bounds, MemoryFindings& found) {
  const std::int64_t more = memory.measured.total() - bounds.of(memory);
  if (more <= 0) return;
  // Bytes that only a rank's workspace can explain are no fault on a GPU. There the dry run leaves out the workspace of
  // cuDNN and of kernels that sum (dry_run.h). On the CPU the dry run counts all workspace.
  const bool counts_all = evidence.config().run.device == DeviceKind::cpu;
  if (more <= (counts_all ? 0 : memory.measured[Bucket::workspace])) {
    found.note = fmt::format(
        "rank {} holds {} bytes more than predicted, no more than its workspace: that of cuDNN and "
        "of the sums of kernels is not predicted",
        memory.rank, more);
    return;
  }
  const Bucket most = std::ranges::max(all_values<Bucket>, {}, [&](Bucket bucket) { return excess(memory, bucket); });
  if (found.finding.sentence.empty()) {
    found.finding.sentence =
        fmt::format("rank {} holds {} bytes more than predicted, most of it {}", memory.rank, more, name_of(most));
  }
  found.finding.evidence.push_back({fmt::format("peak of rank {}", memory.rank),
                                    fmt::format("{} bytes", memory.measured.total()), bounds.text_of(memory),
                                    summary_file});
  found.finding.evidence.push_back(line_of(memory, most));
  found.add({more, Basis::measured, fmt::format("rank {} beyond the prediction ({})", memory.rank, summary_file)});
}

// A pool may grow once more if a rank gets more routed tokens than ever before.
void check_allocations(const RunEvidence& evidence, MemoryFindings& found) {
  if (evidence.run.steps.size() <= 2) return;
  const auto allocating =
      std::ranges::count_if(evidence.steady, [](const StepMetrics& step) { return step.system_allocations > 0; });
  if (2 * allocating <= std::ssize(evidence.steady)) return;
  if (found.finding.sentence.empty()) {
    found.finding.sentence = "steps go on asking the system for memory after the first two";
  }
  found.finding.evidence.push_back(
      {"allocations by the system in a step",
       fmt::format("{}, some in {} of {} steps", evidence.run.steps.back().system_allocations, allocating,
                   evidence.steady.size()),
       "0: a step uses the blocks of the one before", metrics_file});
}

// A key that sends a fraction of something to host memory.
struct OffloadKey {
  const char* path;
  double& (*fraction)(Config& config);
};
// Activations come back first: they travel twice for each microbatch, states twice a step.
constexpr OffloadKey offload_keys[] = {
    {"training.offload", [](Config& config) -> double& { return config.training.offload; }},
    {"optimizer.offload", [](Config& config) -> double& { return config.state_offload; }}};

}  // namespace

// The dry run behind the prediction makes every tensor of a run, token ids and totals included, so there is no
// tolerance. A run holds less if a step was skipped or other ranks have the tokens. It never holds more.
RuleVerdict check_memory(const RunEvidence& evidence) {
  MemoryFindings found;
  MemoryBounds bounds(evidence.config());
  for (const RankMemory& memory : evidence.run.memory) {
    check_static(memory, found);
    check_peak(evidence, memory, bounds, found);
  }
  check_allocations(evidence, found);
  DiagnosedFault& finding = found.finding;
  if (finding.sentence.empty()) {
    if (evidence.run.earlier_summary) return RuleVerdict::unchecked("summary.json is of an earlier part of this run");
    if (evidence.run.memory.empty()) return RuleVerdict::unchecked("needs summary.json, which a run writes at its end");
    return RuleVerdict::silent("{}", found.note);
  }
  if (!found.planned_wrong) {
    finding.changes = {{"hardware.memory", "", "what is planned for a rank must leave room for this"}};
  }
  return RuleVerdict::found(std::move(finding));
}

RuleVerdict check_host_memory(const RunEvidence& evidence) {
  Config config = evidence.config();
  std::vector<SettingChange> changes;
  std::optional<Alternative> kept;  // with these changes
  std::string refused;
  for (const OffloadKey& key : offload_keys) {
    Config changed = config;
    if (std::exchange(key.fraction(changed), 0.0) == 0.0) continue;
    const auto other = alternative_of(evidence, changed);
    if (!other) continue;
    if (other->fits.value_or(false)) {
      config = changed;
      kept = other;
      changes.push_back({key.path, "0.0"});
    } else {
      refused = fmt::format("{} = 0.0 takes {}", key.path, other->memory);
    }
  }
  if (!kept) return refused.empty() ? RuleVerdict::silent() : RuleVerdict::silent("{}", refused);
  DiagnosedFault finding{.sentence = "the device has room for what waits in host memory and is copied in every step"};
  finding.evidence = {memory_line(evidence, "keeping it on the device", *kept)};
  finding.changes = std::move(changes);
  return RuleVerdict::found(std::move(finding));
}

}  // namespace weft
