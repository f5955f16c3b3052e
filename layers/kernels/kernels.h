// The kernels of a device: one table of functions per operation, with the contracts of its header. The public functions
// of those headers check what must hold on every device and call the table of their context.
#pragma once

#include "layers/kernels/attention.h"
#include "layers/kernels/float8.h"
#include "layers/kernels/gpu_kernel_options.h"
#include "layers/kernels/matrix_products.h"
#include "layers/kernels/routing.h"
#include "layers/kernels/state_space.h"
#include "layers/kernels/token_kernels.h"

namespace weft {

struct LayerKernels {
  AttentionKernels attention;
  CapacityKernels capacity;
  CrossEntropyKernels cross_entropy;
  EmbeddingKernels embedding;
  Float8Kernels float8;
  LoadBalanceKernels load_balance;
  PermutationKernels permutation;
  RmsNormKernels rms_norm;
  RotaryKernels rotary;
  RoutingKernels routing;
  StateSpaceKernels state_space;
  SwigluKernels swiglu;
};

// Calls a kernel of the context's table, timed as elementwise work.
template <typename Kernel, typename... Arguments>
void run_elementwise(KernelContext& context, const Kernel& kernel, const Arguments&... arguments) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  kernel(context, arguments...);
}

// All work is done by the calling thread before a call returns.
LayerKernels cpu_layer_kernels();

// Workspace that a dry kernel allocates.
enum class DryWorkspace : std::uint8_t {
  of_cpu,  // all workspace of the CPU's kernels
  // Workspace of the products, the gradients of a state space's states, and the scratch of cuDNN's backward of
  // attention. The rest of cuDNN's, and that of other kernels' sums, is known only on a GPU with its libraries.
  of_cuda,
};

// Kernels that compute nothing, for a dry run of a step that measures its needs (runtime/dry_device.h): they report
// their arguments to the device's observer.
// `gpu` tells which kernel of attention a GPU takes.
LayerKernels dry_layer_kernels(DryWorkspace workspace, const GpuKernelOptions& gpu = {});
// Products on `stream`, with workspace from `ledger`; both must outlive the products.
std::unique_ptr<MatrixProducts> make_dry_matrix_products(DryWorkspace workspace, Stream& stream, MemoryLedger& ledger);

}  // namespace weft
