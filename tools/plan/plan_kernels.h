// The output of `weft plan --kernels`: the kernels of a step, their bytes and operations, and their calculated times.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/measured_kernels.h"
#include "trainer/costs/hardware.h"

namespace weft {

// Both throw Error (request) as plan_kernels() does (kernel_plan.h). `ran`: measured kernels to show as well
// (measured_kernels.h); may be empty.
std::string plan_kernels_text(const Config& config, const Hardware& hardware, const std::vector<RanKernel>& ran);
// {"hardware", "rank", "world", "product_shares": [...], "rows": [...], "kinds": [...], "seconds": [...], "step_flops",
// "utilisation": [...]}; seconds are of a step, by the shares.
std::string plan_kernels_json(const Config& config, const Hardware& hardware);

}  // namespace weft
