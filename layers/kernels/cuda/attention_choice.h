#pragma once

#include "layers/kernels/attention.h"

namespace weft::cuda {

// Attention for a device of this compute capability (90 for 9.0), with plans that belong to the rank.
AttentionKernels make_attention_kernels(int compute_capability);

}  // namespace weft::cuda
