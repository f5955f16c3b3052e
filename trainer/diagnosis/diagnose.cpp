#include "trainer/diagnosis/diagnose.h"

#include <algorithm>
#include <tuple>

namespace weft {

Diagnosis diagnose(const RunEvidence& evidence) {
  Diagnosis diagnosis;
  for (const Rule& rule : diagnosis_rules()) {
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
  std::stable_sort(diagnosis.findings.begin(), diagnosis.findings.end(),
                   [&](const DiagnosedFault& one, const DiagnosedFault& other) { return cost(one) > cost(other); });
  return diagnosis;
}

}  // namespace weft
