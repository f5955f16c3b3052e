// Measured kernels beside the calculated kernels of a step: the rates that products, attention and element-wise kernels
// reached, by part of the model and phase. The kind of a kernel follows from its name.
#pragma once

#include <string>
#include <vector>

#include "trainer/planning/kernel_plan.h"

namespace weft {

enum class RanAs : std::uint8_t { product, attention, elementwise, communication };
// "nvjet_tst_128x256_...", "cudnn_generated_fort_native_sdpa_...", "weft::cuda::rms_norm_...", "ncclDevKernel_...".
RanAs kind_of_kernel(std::string_view name);

// One line of the table of kernels (tools/profile/kernel_table.cpp).
struct RanKernel {
  std::string part, phase;  // as in KernelRow
  RanAs kind = RanAs::elementwise;
  double seconds = 0.0, launches = 0.0;  // per step
};
// Reads the table of kernels of this many steps. Throws Error (request) naming a line that is not of the table.
std::vector<RanKernel> read_kernel_table(const std::string& file, int steps);

// For each part and phase: calls and launches, calculated and measured milliseconds, and the reached operations and
// bytes a second.
std::string reached_text(const KernelPlan& plan, const std::vector<RanKernel>& ran);

}  // namespace weft
