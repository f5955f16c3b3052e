// The CPU's tables, each defined beside its functions.
#pragma once

#include "layers/kernels/kernels.h"

namespace weft::cpu {

extern const AttentionKernels attention_kernels;
extern const CrossEntropyKernels cross_entropy_kernels;
extern const EmbeddingKernels embedding_kernels;
extern const Float8Kernels float8_kernels;
extern const LoadBalanceKernels load_balance_kernels;
extern const PermutationKernels permutation_kernels;
extern const RmsNormKernels rms_norm_kernels;
extern const RotaryKernels rotary_kernels;
extern const RoutingKernels routing_kernels;
extern const SwigluKernels swiglu_kernels;

// These allocate the workspace of the functions in the tables above, and compute nothing.
void take_attention_forward_workspace(KernelContext& context, const HeadShape& heads, QueryRuns runs, DType dtype);
void take_attention_backward_workspace(KernelContext& context, const HeadShape& heads, QueryRuns runs, DType dtype);
Tensor sort_workspace(KernelContext& context, std::int64_t experts);

}  // namespace weft::cpu
