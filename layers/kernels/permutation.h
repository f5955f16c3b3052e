// The permutation of tokens by chosen expert, and moves of whole rows. Integers and orders are exact. T tokens, E
// experts, K choices per token.
#pragma once

#include <span>

#include "layers/kernels/context.h"

namespace weft {

// Stable sort of the T*K choices by expert. counts [E, 1] int32: choices of each expert. slots [T, K] int32: the
// position of choice (t, k) in expert-major order, token order inside an expert.
void sort_by_expert(KernelContext& context, ConstTensorView indices, TensorView counts, TensorView slots);
// totals [E, 1] float64 += counts [E, 1] int32.
void add_counts(KernelContext& context, ConstTensorView counts, TensorView totals);
// permuted [T*K, hidden]: row slots[t, k] = x[t]. From here on rows are float32, bfloat16 or float16.
void permute_rows(KernelContext& context, ConstTensorView x, ConstTensorView slots, TensorView permuted);
// y[t] += sum over k of weights[t, k] * permuted[slots[t, k]], float32 sums; empty weights count as 1.
void unpermute_rows(KernelContext& context, ConstTensorView permuted, ConstTensorView slots, ConstTensorView weights,
                    TensorView y);
// Gradients of unpermute_rows: dpermuted[slots[t, k]] = weights[t, k] * dy[t]; dweights[t, k] = <dy[t],
// permuted[slots[t, k]]>.
void unpermute_rows_backward(KernelContext& context, ConstTensorView dy, ConstTensorView permuted,
                             ConstTensorView slots, ConstTensorView weights, TensorView dpermuted, TensorView dweights);
// Moves row blocks: block b of `counts[b]` rows begins at from[b] in source and at to[b] in destination.
void move_blocks(KernelContext& context, ConstTensorView source, std::span<const std::int64_t> from,
                 std::span<const std::int64_t> to, std::span<const std::int64_t> counts, TensorView destination);

struct PermutationKernels {
  decltype(&weft::sort_by_expert) sort_by_expert;
  decltype(&weft::add_counts) add_counts;
  decltype(&weft::permute_rows) permute_rows;
  decltype(&weft::unpermute_rows) unpermute_rows;
  decltype(&weft::unpermute_rows_backward) unpermute_rows_backward;
  decltype(&weft::move_blocks) move_blocks;
};

}  // namespace weft
