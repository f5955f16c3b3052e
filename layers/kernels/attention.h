// Grouped-query causal attention in blocks: softmax(q k^T / sqrt(head_dim)) v within each sequence of
// `heads.sequence_length` rows. No sequence x sequence matrix is stored; workspace is one block of scores
// (Dao et al. 2022, FlashAttention; the backward recomputes probabilities from the log-sum-exp).
//
// qkv as in rotary.h, after rotary_forward; out [tokens, query_heads * head_dim] in the same dtype;
// log_sum_exp [tokens, query_heads] float32. tokens is a multiple of sequence_length. Sums are float32.
#pragma once

#include "layers/kernels/rotary.h"

namespace weft {

void attention_forward(KernelContext& context, const HeadShape& heads, ConstTensorView qkv, TensorView out,
                       TensorView log_sum_exp);
// dqkv is overwritten; keys and values shared by several query heads receive the sum of their gradients.
void attention_backward(KernelContext& context, const HeadShape& heads, ConstTensorView dout, ConstTensorView qkv,
                        ConstTensorView out, ConstTensorView log_sum_exp, TensorView dqkv);

}  // namespace weft
