// Reports on a diagnosis for readers and scripts. All functions return text to print.
#pragma once

#include <string>

#include "trainer/diagnosis/diagnose.h"

namespace weft {

std::string diagnosis_report(const RunEvidence& evidence, const Diagnosis& diagnosis);
// {"run", "hardware", "steps", "step_seconds", "healthy", "findings": [...], "rules": [...], "memory": [...]}, one JSON
// document. "step" of a finding is {"seconds", "basis", "source"} or null; "memory" is the same with "bytes".
std::string diagnosis_json(const RunEvidence& evidence, const Diagnosis& diagnosis);

}  // namespace weft
