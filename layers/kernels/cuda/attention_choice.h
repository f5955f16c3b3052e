#pragma once

#include "layers/kernels/attention.h"
#include "layers/kernels/gpu_kernel_options.h"

namespace weft::cuda {

// Attention for a device of this compute capability (90 for 9.0), with plans that belong to the rank. Where cuDNN is
// asked for and does not take the attention, the calls throw Error (request).
AttentionKernels make_attention_kernels(int compute_capability, const GpuKernelOptions& options = {});

}  // namespace weft::cuda
