// The tables of a CUDA device, each defined beside its functions.
#pragma once

#include <optional>
#include <string>

#include "layers/kernels/kernels.h"

namespace weft::cuda {

// Of RoutingKernels, those that permute (permutation.cu); the others are in routing.cu.
void sort_by_expert(KernelContext& context, ConstTensorView indices, TensorView counts, TensorView slots);
void add_counts(KernelContext& context, ConstTensorView counts, TensorView totals);
void permute_rows(KernelContext& context, ConstTensorView x, ConstTensorView slots, TensorView permuted);
void unpermute_rows(KernelContext& context, ConstTensorView permuted, ConstTensorView slots, ConstTensorView weights,
                    TensorView y);
void unpermute_rows_backward(KernelContext& context, ConstTensorView dy, ConstTensorView permuted,
                             ConstTensorView slots, ConstTensorView weights, TensorView dpermuted, TensorView dweights);
void move_blocks(KernelContext& context, ConstTensorView source, std::span<const std::int64_t> from,
                 std::span<const std::int64_t> to, std::span<const std::int64_t> counts, TensorView destination);

// Attention by our own kernel, for what cuDNN does not take: any runs, float32 and bfloat16 (plain_attention.cu).
extern const AttentionKernels plain_attention_kernels;
extern const CrossEntropyKernels cross_entropy_kernels;
extern const EmbeddingKernels embedding_kernels;
extern const LoadBalanceKernels load_balance_kernels;
extern const RmsNormKernels rms_norm_kernels;
extern const RotaryKernels rotary_kernels;
extern const RoutingKernels routing_kernels;
extern const SwigluKernels swiglu_kernels;

}  // namespace weft::cuda
