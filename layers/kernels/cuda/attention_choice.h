#pragma once

#include "layers/kernels/attention.h"
#include "layers/kernels/gpu_kernel_options.h"

namespace weft::cuda {

// Attention for a device of this compute capability (90 for 9.0); its plans belong to the rank. Calls throw Error
// (request) if the options ask for cuDNN and cuDNN does not take the attention.
AttentionKernels make_attention_kernels(int compute_capability, const GpuKernelOptions& options = {});

}  // namespace weft::cuda
