// Grouped-query causal attention in blocks: softmax(q k^T / sqrt(head_dim)) v within each sequence. No sequence x
// sequence matrix is stored; workspace is one block of scores (Dao et al. 2022, FlashAttention; the backward recomputes
// probabilities from the log-sum-exp).
//
// A rank may compute only some queries of each sequence, those of `runs`: consecutive positions, ascending and
// disjoint. `q` holds their rows, sequence after sequence, with the query heads in its first columns; `kv` holds every
// row of every sequence (heads.sequence_length each), with key heads and then value heads in its last columns. Both may
// be one fused matrix (rotary.h) when the runs cover the sequence. out [query rows, query_heads * head_dim] in the same
// dtype; log_sum_exp [query rows, query_heads] float32. float32, bfloat16 or float16; sums are
// float32.
#pragma once

#include <functional>
#include <string>

#include "layers/kernels/rotary.h"

namespace weft {

using QueryRuns = std::span<const Range>;
// Of one sequence.
std::int64_t query_rows(QueryRuns runs);

void attention_forward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView q,
                       ConstTensorView kv, TensorView out, TensorView log_sum_exp);
// The head columns of dq and of dkv are overwritten; keys and values shared by several query heads receive the sum of
// their gradients.
void attention_backward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView dout,
                        ConstTensorView q, ConstTensorView kv, ConstTensorView out, ConstTensorView log_sum_exp,
                        TensorView dq, TensorView dkv);

// Not plain functions: a library's prepared plans belong to the rank.
struct AttentionKernels {
  std::function<decltype(attention_forward)> forward;
  std::function<decltype(attention_backward)> backward;
  // What computes a microbatch of this shape, in words: which library, or why not.
  std::function<std::string(const HeadShape&, QueryRuns, DType)> description;
};

}  // namespace weft
