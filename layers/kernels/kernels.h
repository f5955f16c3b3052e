// The kernels of a device: a table of functions, with the contracts of their headers. The public functions of those
// headers check what must hold on every device and call the table of their context.
#pragma once

#include "layers/kernels/attention.h"
#include "layers/kernels/float8.h"
#include "layers/kernels/gpu_kernel_options.h"
#include "layers/kernels/matrix_products.h"
#include "layers/kernels/routing.h"
#include "layers/kernels/state_space.h"
#include "layers/kernels/token_kernels.h"

namespace weft {

// Calls `of` with the name of each kernel besides attention. A device has a function of each name, with the type of the
// public one, in a namespace of its own.
// clang-format off
#define WEFT_FOR_LAYER_KERNELS(of)                                                                 \
  of(limit_choices) of(spread_slots) of(add_dropped)                                               \
  of(vocabulary_sums) of(shift_vocabulary_sums) of(cross_entropy_gradient)                         \
  of(embedding_forward) of(embedding_backward)                                                     \
  of(round_to_float8)                                                                              \
  of(expert_statistics) of(scale_counts) of(auxiliary_loss) of(auxiliary_loss_backward) of(z_loss) \
  of(choices_within) of(parts_chosen) of(sort_by_expert) of(add_counts)                            \
  of(permute_rows) of(unpermute_rows) of(unpermute_rows_backward) of(move_blocks)                  \
  of(rms_norm_forward) of(rms_norm_backward)                                                       \
  of(rotary_forward) of(rotary_backward)                                                           \
  of(route_forward) of(route_backward) of(jitter_rows)                                             \
  of(mix_tokens_forward) of(mix_tokens_backward) of(scan_tokens_forward) of(scan_tokens_backward)  \
  of(gated_norm_forward) of(gated_norm_backward)                                                   \
  of(swiglu_forward) of(swiglu_backward)
// clang-format on
// Declares such a function.
#define WEFT_DECLARE_KERNEL(name) decltype(::weft::name) name;

struct LayerKernels {
  AttentionKernels attention;
#define WEFT_KERNEL_POINTER(name) decltype(&::weft::name) name = nullptr;
  WEFT_FOR_LAYER_KERNELS(WEFT_KERNEL_POINTER)
#undef WEFT_KERNEL_POINTER
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
