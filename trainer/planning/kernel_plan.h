// What the kernels of a step take on paper. The rank's own code is walked through with kernels that only tell what they
// were called with (dry_run.h), so a call that is added, saved or made smaller shows without a table being kept.
//
// A product takes its operations over a rate that is assumed, an attention its operations over the rate that is
// published of it, and everything takes at least its bytes over the rate of the card's memory. Operands that still lie
// in a cache, kernels that run beside each other, waits for other ranks and for the host are not known here.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "parallel/runtime/kernel_log.h"
#include "trainer/costs/hardware.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

// Shares of the peak that products are assumed to reach; a square one of 8,192 reaches 0.8 on an H200 in bfloat16.
inline constexpr std::array product_shares = {0.65, 0.70, 0.75, 0.80};
inline constexpr std::size_t shown_share = 1;  // of them, for tables that show one

struct KernelSeconds {
  std::array<double, product_shares.size()> at{};  // by share
  KernelSeconds& operator+=(const KernelSeconds& other);
};

// What one call takes. Throws Error (request) where nobody knows the rate of the hardware's memory.
KernelSeconds kernel_seconds(const KernelCall& call, const Hardware& hardware);

// Calls of one kernel, of one size if it is a product, for one purpose.
struct KernelRow {
  std::string_view part;   // "attention", "mlp", ...; "units" and "step" for what is of no segment
  std::string_view phase;  // "forward", "input gradient", ...
  std::string kernel;      // "rms_norm_forward", "multiply 4096 x 11264 x 2048"
  KernelKind kind = KernelKind::elementwise;
  std::int64_t calls = 0;
  double bytes = 0.0;  // read and written
  double flops = 0.0;
  KernelSeconds seconds = {};
};

struct KernelPlan {
  int rank = 0;                 // of the pipeline's ranks the one whose kernels take longest
  std::vector<KernelRow> rows;  // in the order in which they are called first
  double step_flops = 0.0;      // of the whole model, as published (step_flops.h)
  int world = 1;
  double peak = 0.0;  // operations a second that utilisation is counted against

  KernelRow sum(KernelKind kind) const;
  KernelSeconds seconds() const;
  // Of all ranks, were each as busy as this one and never waiting: no run of these kernels is above it.
  double utilisation(std::size_t share) const;
};

// Throws Error (request) as kernel_seconds() does.
KernelPlan plan_kernels(const ResolvedRun& run, const Hardware& hardware);

}  // namespace weft
