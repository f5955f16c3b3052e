// The faults of a run by name, with evidence and the setting to change.
#pragma once

#include <string>
#include <vector>

#include "trainer/diagnosis/rules.h"

namespace weft {

struct RuleResult {
  std::string rule, asks;
  RuleVerdict verdict;
};

struct Diagnosis {
  std::vector<RuleResult> rules;  // every one, in the order of the table
  // Ordered by cost, largest first: measured seconds, then modelled seconds, then bytes. Findings without cost follow
  // in the order of the table.
  std::vector<DiagnosedFault> findings;

  bool healthy() const { return findings.empty(); }
};

Diagnosis diagnose(const RunEvidence& evidence);

}  // namespace weft
