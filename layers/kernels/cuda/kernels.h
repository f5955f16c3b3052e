// The tables of a CUDA device, each defined beside its functions.
#pragma once

#include <optional>
#include <string>

#include "layers/kernels/kernels.h"

namespace weft::cuda {

// Attention by our own kernel, for calls that cuDNN does not take: any runs and compute dtype (plain_attention.cu).
extern const AttentionKernels plain_attention_kernels;
// AttentionKernels::cached of every device (cached_attention.cu).
void cached_attention(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView q,
                      ConstTensorView cache, TensorView out);
extern const CrossEntropyKernels cross_entropy_kernels;
extern const EmbeddingKernels embedding_kernels;
extern const Float8Kernels float8_kernels;
extern const LoadBalanceKernels load_balance_kernels;
extern const PermutationKernels permutation_kernels;
extern const RmsNormKernels rms_norm_kernels;
extern const RotaryKernels rotary_kernels;
extern const RoutingKernels routing_kernels;
extern const SwigluKernels swiglu_kernels;

}  // namespace weft::cuda
