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

// New tokens of each of several sequences against all that came before them, for text that is generated. `qkv`
// [sequences * tokens, heads.columns()], after rotary, holds the new tokens sequence after sequence; they stand at
// `position`, `position` + 1, ... of theirs. `cache` [sequences * heads.sequence_length, 2 * key_value_heads *
// head_dim] has a row for every position that a sequence may come to, key heads and then value heads: the new tokens'
// rows are written, those before them read, those behind neither. out [sequences * tokens, query_heads * head_dim]. One
// dtype, float32, bfloat16 or float16; sums are float32.
void attention_cached(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView qkv,
                      TensorView cache, TensorView out);

// Not plain functions: a library's prepared plans belong to the rank.
struct AttentionKernels {
  std::function<decltype(attention_forward)> forward;
  std::function<decltype(attention_backward)> backward;
  // Of attention_cached, once the new keys and values are in the cache.
  std::function<void(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView q,
                     ConstTensorView cache, TensorView out)>
      cached;
  // What computes a microbatch of this shape, in words: which library, or why not.
  std::function<std::string(const HeadShape&, QueryRuns, DType)> description;
};

}  // namespace weft
