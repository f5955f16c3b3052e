// The output of `weft plan --explain`: why a run does not fit and which changes make it fit, as text and as one JSON
// document.
#pragma once

#include <string>

#include "trainer/planning/explain.h"

namespace weft {

std::string plan_explain_text(const Explanation& explanation, const Hardware& hardware);
// At most three remedies of a plan that does not fit; remedies that suffice alone come first.
std::string plan_remedies_text(const Explanation& explanation);
std::string plan_explain_json(const Explanation& explanation, const Hardware& hardware);

}  // namespace weft
