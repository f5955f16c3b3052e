// What `weft plan --explain` prints: why a run does not fit and what would make it fit, as text and as one JSON
// document.
#pragma once

#include <string>

#include "trainer/planning/explain.h"

namespace weft {

std::string plan_explain_text(const Explanation& explanation, const Hardware& hardware);
std::string plan_explain_json(const Explanation& explanation, const Hardware& hardware);

}  // namespace weft
