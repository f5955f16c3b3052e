// A diagnosis for the eye and for scripts. Results are text to print.
#pragma once

#include <string>

#include "trainer/diagnosis/diagnose.h"

namespace weft {

std::string diagnosis_report(const RunEvidence& evidence, const Diagnosis& diagnosis);
// {"run", "hardware", "steps", "step_seconds", "healthy", "findings": [...], "rules": [...], "memory": [...]}, one JSON
// document. Of a finding, "step" is {"seconds", "basis", "source"} or null, and "memory" the same with "bytes".
std::string diagnosis_json(const RunEvidence& evidence, const Diagnosis& diagnosis);

}  // namespace weft
