// The output of `weft plan --coarse`: formulas by hand (coarse.h). Every line of the text begins with the word
// "coarse".
#pragma once

#include <string>

#include "trainer/planning/coarse.h"

namespace weft {

std::string plan_coarse_text(const CoarseRequest& request, const Card& card);
std::string plan_coarse_json(const CoarseRequest& request, const Card& card);

}  // namespace weft
