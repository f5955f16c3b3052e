// The output of `weft plan`: text, and the JSON document that scripts rely on.
#pragma once

#include <string>

#include "trainer/planning/run_plan.h"

namespace weft {

std::string plan_text(const Config& config, const Hardware& hardware, const RunPlan& plan);
std::string plan_json(const Config& config, const Hardware& hardware, const RunPlan& plan);

}  // namespace weft
