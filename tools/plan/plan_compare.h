// The output of `weft plan --compare`: ways to shard a model's state beside each other, and the recommended one. As
// text, and as one JSON document.
#pragma once

#include <string>

#include "trainer/costs/hardware.h"

namespace weft {

// Throws Error (request) as compare_strategies does.
std::string plan_compare_text(const Config& config, const Hardware& hardware);
// {"hardware", "node_bytes_per_second", "compute_seconds", "tokens_per_rank", "certainty", "tie_factor",
//  "strategies": [...], "recommendation"}; bytes are per step. A strategy that does not apply has "refused" and no
// figures.
std::string plan_compare_json(const Config& config, const Hardware& hardware);

}  // namespace weft
