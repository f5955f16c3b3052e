#include "trainer/diagnosis/diagnose.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace weft {
namespace {

struct Rule {
  std::string_view name;
  std::string_view asks;  // the question of the rule, in words
  RuleVerdict (*check)(const RunEvidence& evidence);
};
// In the order in which findings of unknown cost are reported.
constexpr Rule diagnosis_rules[] = {
    {"root_only_units", "blocks of a stage that are gathered together", check_root_only_units},
    {"reductions_not_deferred", "reductions of a step against one for each unit", check_reductions},
    {"gathers_repeated", "gathers of a step against what keeping parameters takes", check_repeated_gathers},
    {"units_too_small", "payload of a gather against the latency of its link", check_small_units},
    {"gathers_in_fp32", "bytes of a gathered parameter", check_gather_dtype},
    {"lookahead_off", "gathers that start behind the computation before their use", check_lookahead},
    {"strategy_wrong_for_topology", "bytes that leave a node against those of hybrid sharding", check_topology},
    {"batch_below_break_even", "tokens of a rank against those that hide the exchange", check_batch},
    {"stage_imbalance", "computation of the pipeline's ranks", check_stages},
    {"expert_imbalance", "tokens of experts and of their ranks against the mean", check_experts},
    {"bias_runs_away", "selection biases against the scores", check_biases},
    {"slow_rank", "computation of ranks with the same work", check_slow_ranks},
    {"host_memory_unneeded", "what waits in host memory against the room of the device", check_host_memory},
    {"memory", "measured memory against the predicted, by bucket and rank", check_memory},
};

}  // namespace

Diagnosis diagnose(const RunEvidence& evidence) {
  Diagnosis diagnosis;
  for (const Rule& rule : diagnosis_rules) {
    RuleVerdict verdict = rule.check(evidence);
    if (verdict.finding) {
      verdict.finding->rule = rule.name;
      diagnosis.findings.push_back(*verdict.finding);
    }
    diagnosis.rules.push_back({std::string(rule.name), std::string(rule.asks), std::move(verdict)});
  }
  const auto cost = [](const DiagnosedFault& finding) {
    const StepCost step = finding.step.value_or(StepCost{});
    return std::tuple(finding.step.has_value(), step.basis == Basis::measured, step.seconds,
                      finding.memory.value_or(MemoryCost{}).bytes);
  };
  std::ranges::stable_sort(diagnosis.findings, std::ranges::greater{}, cost);
  return diagnosis;
}

}  // namespace weft
