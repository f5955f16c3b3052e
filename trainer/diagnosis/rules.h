// The faults that are looked for, one function each, from the evidence of a run to a verdict. Thresholds stand beside
// their rule, with the reason; docs/diagnose.md has them all in one table.
#pragma once

#include <span>
#include <string_view>

#include "trainer/diagnosis/evidence.h"
#include "trainer/diagnosis/diagnosed_fault.h"

namespace weft {

struct Rule {
  std::string_view name;
  std::string_view asks;  // the question of the rule, in words
  RuleVerdict (*check)(const RunEvidence& evidence);
};

// In the order in which findings of unknown cost are reported.
std::span<const Rule> diagnosis_rules();

RuleVerdict check_root_only_units(const RunEvidence& evidence);
RuleVerdict check_reductions(const RunEvidence& evidence);
RuleVerdict check_repeated_gathers(const RunEvidence& evidence);
RuleVerdict check_small_units(const RunEvidence& evidence);
RuleVerdict check_gather_dtype(const RunEvidence& evidence);
RuleVerdict check_lookahead(const RunEvidence& evidence);
RuleVerdict check_topology(const RunEvidence& evidence);
RuleVerdict check_batch(const RunEvidence& evidence);
RuleVerdict check_stages(const RunEvidence& evidence);
RuleVerdict check_experts(const RunEvidence& evidence);
RuleVerdict check_slow_ranks(const RunEvidence& evidence);
RuleVerdict check_memory(const RunEvidence& evidence);

}  // namespace weft
