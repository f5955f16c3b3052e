// Kernels that ran, beside those that a step has on paper: what products, attention and element-wise kernels reached,
// by part of the model and phase. Which kind a kernel is of is told by its name.
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
  std::string part, phase;  // as KernelRow has them
  RanAs kind = RanAs::elementwise;
  double seconds = 0.0, launches = 0.0;  // of a step
};
// Of a table that counted so many steps. Throws Error (request) naming the line that is none.
std::vector<RanKernel> read_kernel_table(const std::string& file, int steps);

// Part and phase by part and phase: calls and launches, milliseconds on paper and measured, operations and bytes a
// second that were reached.
std::string reached_text(const KernelPlan& plan, const std::vector<RanKernel>& ran);

}  // namespace weft
