#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/diagnosis/diagnose.h"

namespace weft {
namespace {

std::string cost_text(const RunEvidence& evidence, const DiagnosedFault& finding) {
  std::vector<std::string> parts;
  if (finding.step) {
    const bool measured = finding.step->basis == Basis::measured;
    parts.push_back(fmt::format("{} {:.3g} s of a step, which takes {:.3g} s; {}: {}", measured ? "at most" : "about",
                                finding.step->seconds, evidence.step_seconds, name_of(finding.step->basis),
                                finding.step->source));
  }
  if (finding.memory) {
    parts.push_back(fmt::format("{} bytes of the fullest rank; {}: {}", finding.memory->bytes,
                                name_of(finding.memory->basis), finding.memory->source));
  }
  if (!parts.empty()) return fmt::format("{}", fmt::join(parts, "\n             "));
  return evidence.traced.empty() ? "not known: the run left no traces" : "none that the traces show";
}

std::string change_text(const SettingChange& change) {
  const std::string value =
      change.value.empty() ? change.setting : fmt::format("{} = {}", change.setting, change.value);
  return change.why.empty() ? value : fmt::format("{}   # {}", value, change.why);
}

std::string finding_text(const RunEvidence& evidence, std::size_t number, const DiagnosedFault& finding) {
  std::string text = fmt::format("\n{}. {}: {}\n   cost      {}\n", number, finding.rule, finding.sentence,
                                 cost_text(evidence, finding));
  for (const EvidenceLine& line : finding.evidence) {
    text += fmt::format("   {:9} {}: {} ({})\n   expected  {}\n", name_of(line.basis), line.what, line.value,
                        line.source, line.expected);
  }
  for (const SettingChange& change : finding.changes) text += fmt::format("   change    {}\n", change_text(change));
  return text;
}

// Rules with this outcome, and their notes.
std::string rules_text(const Diagnosis& diagnosis, RuleVerdict::Outcome outcome, std::string_view title) {
  std::string text;
  for (const RuleResult& result : diagnosis.rules) {
    if (result.verdict.outcome != outcome) continue;
    const std::string note = result.verdict.note.empty() ? "" : fmt::format("; {}", result.verdict.note);
    text += fmt::format("  {:28}{}{}\n", result.rule, result.asks, note);
  }
  return text.empty() ? "" : fmt::format("\n{}\n{}", title, text);
}

std::string memory_text(const RunEvidence& evidence) {
  if (evidence.run.memory.empty()) return "";
  BenchTable table{{"rank", "predicted bytes", "measured bytes", "difference"}};
  for (const RankMemory& memory : evidence.run.memory) {
    const auto predicted = memory.predicted.total(), measured = memory.measured.total();
    table.add(
        memory.rank, predicted, measured,
        fmt::format("{:+.1f} %", 100.0 * static_cast<double>(measured - predicted) / static_cast<double>(predicted)));
  }
  return "\nmemory at each rank's largest peak of a step\n" + aligned_text(table);
}

Json fault_json(const DiagnosedFault& finding) {
  Json json = {{"rule", finding.rule}, {"sentence", finding.sentence}};
  const auto cost = [](const char* unit, const auto& figure, const auto& of) {
    return Json{{unit, figure}, {"basis", name_of(of.basis)}, {"source", of.source}};
  };
  json["step"] = finding.step ? cost("seconds", finding.step->seconds, *finding.step) : Json();
  json["memory"] = finding.memory ? cost("bytes", finding.memory->bytes, *finding.memory) : Json();
  json["evidence"] = json_list(finding.evidence, [](const EvidenceLine& line) {
    return Json{{"what", line.what},
                {"value", line.value},
                {"basis", name_of(line.basis)},
                {"expected", line.expected},
                {"source", line.source}};
  });
  json["changes"] = json_list(finding.changes, [](const SettingChange& change) {
    return Json{{"setting", change.setting}, {"value", change.value}, {"why", change.why}};
  });
  return json;
}

std::string diagnosis_report(const RunEvidence& evidence, const Diagnosis& diagnosis) {
  const auto& steps = evidence.steady;
  std::string text = fmt::format("{}: {} ranks, steps {} to {}, {:.3g} s a step, judged as {}\n",
                                 evidence.run.directory.string(), evidence.mesh.world(), steps.front().step,
                                 steps.back().step, evidence.step_seconds, evidence.hardware.name);
  text += diagnosis.healthy()
              ? "no fault found\n"
              : fmt::format("{} found, the most expensive first\n",
                            diagnosis.findings.size() == 1 ? std::string("1 fault")
                                                           : fmt::format("{} faults", diagnosis.findings.size()));
  std::size_t number = 0;
  for (const DiagnosedFault& finding : diagnosis.findings) text += finding_text(evidence, ++number, finding);
  text += rules_text(diagnosis, RuleVerdict::Outcome::silent, "checked, and right");
  text += rules_text(diagnosis, RuleVerdict::Outcome::unchecked, "not checked");
  return text + memory_text(evidence);
}

// {"run", "hardware", "steps", "step_seconds", "healthy", "findings": [...], "rules": [...], "memory": [...]}, one JSON
// document. "step" of a finding is {"seconds", "basis", "source"} or null; "memory" is the same with "bytes".
std::string diagnosis_json(const RunEvidence& evidence, const Diagnosis& diagnosis) {
  const auto rule = [](const RuleResult& result) {
    return Json{{"name", result.rule},
                {"asks", result.asks},
                {"outcome", name_of(result.verdict.outcome)},
                {"note", result.verdict.note}};
  };
  const auto rank = [](const RankMemory& memory) {
    return Json{{"rank", memory.rank}, {"buckets", buckets_json(memory.predicted, memory.measured)}};
  };
  return Json{{"run", evidence.run.directory.string()},
              {"hardware", evidence.hardware.name},
              {"steps", {evidence.steady.front().step, evidence.steady.back().step}},
              {"step_seconds", evidence.step_seconds},
              {"healthy", diagnosis.healthy()},
              {"findings", json_list(diagnosis.findings, fault_json)},
              {"rules", json_list(diagnosis.rules, rule)},
              {"memory", json_list(evidence.run.memory, rank)}}
             .dump() +
         "\n";
}

struct DiagnoseRequest {
  std::string run, hardware;
  bool json = false, strict = false;
};

void diagnose_run(const DiagnoseRequest& request) {
  const RunOutputs run = read_run(request.run);
  const RunEvidence evidence = gather_evidence(run, request.hardware);
  const Diagnosis diagnosis = diagnose(evidence);
  fmt::print("{}", request.json ? diagnosis_json(evidence, diagnosis) : diagnosis_report(evidence, diagnosis));
  if (request.strict && !diagnosis.healthy()) throw CLI::RuntimeError(failed_run);
}

}  // namespace

void add_diagnose_command(CLI::App& program) {
  const auto [command, request] = add_command<DiagnoseRequest>(
      program, "diagnose", "faults of a slow or large run by name, with evidence and the key to change", diagnose_run);
  command.add_option("RUN", request.run, "the run.directory of a run")->required();
  command
      .add_option("--hardware", request.hardware,
                  "judge as if it ran on h100, h200 or cpu; otherwise as [hardware] and run.device say")
      ->check(not_empty());
  command.add_flag("--json", request.json, "print one JSON document");
  command.add_flag("--strict", request.strict, "leave with exit code 3 where something was found");
}

}  // namespace weft
