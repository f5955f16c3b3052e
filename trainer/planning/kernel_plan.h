// Calculated times of the kernels of a step. The rank's own code runs with kernels that only record their calls
// (dry_run.h), so every change of the code shows without a table to maintain.
//
// A product takes its operations over an assumed rate. An attention and the scan of a state space take theirs over
// rates that were measured. Every kernel takes at least its bytes over the rate of the card's memory. Not modelled:
// operands still in a cache, kernels that run concurrently, and waits for other ranks or the host.
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

// Shares of the peak that products are assumed to reach. A square product of 8,192 reaches 0.8 on an H200 in bfloat16.
inline constexpr std::array product_shares = {0.65, 0.70, 0.75, 0.80};
inline constexpr std::size_t shown_share = 1;  // index of the share in tables that show one

// Least time from one kernel to the next on a stream, in seconds.
inline constexpr double least_kernel_seconds = 2.5e-6;

struct KernelSeconds {
  std::array<double, product_shares.size()> at{};  // by share
  KernelSeconds& operator+=(const KernelSeconds& other);
};

// Seconds of one call. Throws Error (request) if the rate of the hardware's memory is unknown.
KernelSeconds kernel_seconds(const KernelCall& call, const Hardware& hardware);

// Calls of one kernel for one purpose; products of different sizes are different rows.
struct KernelRow {
  std::string_view part;   // "attention", "mlp", ...; "units" and "step" outside segments
  std::string_view phase;  // "forward", "input gradient", ...
  std::string kernel;      // "rms_norm_forward", "multiply 4096 x 11264 x 2048"
  KernelKind kind = KernelKind::elementwise;
  std::int64_t calls = 0;
  double bytes = 0.0;  // read and written
  double flops = 0.0;
  KernelSeconds seconds = {};
  KernelSeconds launch = {};  // the part of `seconds` in which only the launch of the next kernel passes
};

struct KernelPlan {
  int rank = 0;                 // the pipeline rank whose kernels take longest
  std::vector<KernelRow> rows;  // in the order in which they are called first
  double step_flops = 0.0;      // of the whole model, as published (step_flops.h)
  int world = 1;
  double peak = 0.0;  // operations a second, the base of utilisation

  KernelRow sum(KernelKind kind) const;
  KernelSeconds seconds() const;
  // Utilisation of all ranks if each were as busy as this rank and never waited: an upper bound for runs with these
  // kernels.
  double utilisation(std::size_t share) const;
  // Seconds that captured regions (a CUDA graph for each segment) save at most. These are the launches of all kernels in
  // segments other than experts, whose shapes vary.
  KernelSeconds capture_saves() const;
};

// Throws Error (request) as kernel_seconds() does.
KernelPlan plan_kernels(const ResolvedRun& run, const Hardware& hardware);

}  // namespace weft
