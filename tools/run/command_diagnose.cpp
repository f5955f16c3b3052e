#include <fmt/format.h>

#include <memory>

#include "tools/command/commands.h"
#include "tools/run/diagnose_report.h"

namespace weft {
namespace {

struct DiagnoseRequest {
  std::string run, hardware;
  bool json = false, strict = false;
};

// Equal to the exit code of a run that failed (main.cpp).
constexpr int found_something = 3;

void diagnose_run(const DiagnoseRequest& request) {
  const RunOutputs run = read_run(request.run);
  const RunEvidence evidence = gather_evidence(run, request.hardware);
  const Diagnosis diagnosis = diagnose(evidence);
  fmt::print("{}", request.json ? diagnosis_json(evidence, diagnosis) : diagnosis_report(evidence, diagnosis));
  if (request.strict && !diagnosis.healthy()) throw CLI::RuntimeError(found_something);
}

}  // namespace

void add_diagnose_command(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("diagnose", "faults of a slow or large run by name, with evidence and the key to change");
  const auto request = std::make_shared<DiagnoseRequest>();
  command->add_option("RUN", request->run, "the run.directory of a run")->required();
  command->add_option("--hardware", request->hardware,
                      "judge as if it ran on h100, h200 or cpu; otherwise as [hardware] and run.device say");
  command->add_flag("--json", request->json, "print one JSON document");
  command->add_flag("--strict", request->strict, "leave with exit code 3 where something was found");
  command->callback([request] { diagnose_run(*request); });
}

}  // namespace weft
