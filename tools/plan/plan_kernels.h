// What `weft plan --kernels` prints: the kernels of a step, what they move and compute, and what that takes on paper.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/measured_kernels.h"
#include "trainer/costs/hardware.h"

namespace weft {

// Throw Error (request) as plan_kernels() does (kernel_plan.h).
// With what of them ran (measured_kernels.h), if anything did.
std::string plan_kernels_text(const Config& config, const Hardware& hardware, const std::vector<RanKernel>& ran);
// {"hardware", "rank", "world", "product_shares": [...], "rows": [...], "kinds": [...], "seconds": [...], "step_flops",
// "utilisation": [...]}; seconds are of a step, by the shares.
std::string plan_kernels_json(const Config& config, const Hardware& hardware);

}  // namespace weft
