// What is wrong with a run, by name, with the evidence and the setting to change.
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
  // By what they cost, each largest first: measured seconds, modelled seconds, bytes; then the rest in the order of the
  // table.
  std::vector<DiagnosedFault> findings;

  bool healthy() const { return findings.empty(); }
};

Diagnosis diagnose(const RunEvidence& evidence);

}  // namespace weft
