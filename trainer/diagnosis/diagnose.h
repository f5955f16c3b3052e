// The faults of a run by name, with evidence and the setting to change. Each rule is a function from the evidence of a
// run to a verdict. Thresholds stand beside their rule, with the reason; docs/diagnose.md has them all in one table.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/diagnosis/evidence.h"

namespace weft {

// A key of the configuration and its new value in TOML syntax.
struct SettingChange {
  std::string setting, value;
  std::string why = {};
};

struct DiagnosedFault {
  std::string rule = {};  // its name, filled in by diagnose()
  std::string sentence;
  // Absent if the run's files do not tell a cost, or show none.
  std::optional<StepCost> step = {};
  std::optional<MemoryCost> memory = {};
  std::vector<EvidenceLine> evidence = {};
  std::vector<SettingChange> changes = {};
};

// A fault of the run's settings with the evidence, no fault, or not checkable.
struct RuleVerdict {
  enum class Outcome : std::uint8_t { found, silent, unchecked };
  Outcome outcome = Outcome::silent;
  std::optional<DiagnosedFault> finding = {};
  std::string note = {};  // why it is silent where that may surprise, or which data is missing

  static RuleVerdict found(DiagnosedFault finding) { return {Outcome::found, std::move(finding)}; }
  static RuleVerdict silent() { return {}; }
  template <typename... Args>
  static RuleVerdict silent(fmt::format_string<Args...> note, Args&&... args) {
    return {Outcome::silent, std::nullopt, fmt::format(note, std::forward<Args>(args)...)};
  }
  static RuleVerdict unchecked(std::string note) { return {Outcome::unchecked, std::nullopt, std::move(note)}; }
};

constexpr auto enum_names(RuleVerdict::Outcome) {
  return name_list("found", "silent", "unchecked");
}

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
RuleVerdict check_biases(const RunEvidence& evidence);
RuleVerdict check_slow_ranks(const RunEvidence& evidence);
RuleVerdict check_host_memory(const RunEvidence& evidence);
RuleVerdict check_memory(const RunEvidence& evidence);

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
