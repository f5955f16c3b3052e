// Kernels that work on each token's row by itself: lookup, norm, rotary embedding, activation, cross-entropy.
#pragma once

#include <span>
#include <vector>

#include "layers/kernels/context.h"
#include "layers/kernels/head_shape.h"
#include "parallel/runtime/range.h"

namespace weft {

// RMSNorm over the last dimension: y = w * x / sqrt(mean(x^2) + eps), statistics in float32.
// x, y: [tokens, hidden], float32, bfloat16 or float16 (all alike); weight [hidden, 1] in the same dtype; inverse_rms
// [tokens, 1] float32.
void rms_norm_forward(KernelContext& context, ConstTensorView x, ConstTensorView weight, float eps, TensorView y,
                      TensorView inverse_rms);
// dx = residual + gradient of x, computed in float32 and rounded once. The residual may be empty (none) or dx itself.
// dweight [hidden, 1] float32, the sum over tokens, is overwritten; an empty one is not computed.
void rms_norm_backward(KernelContext& context, ConstTensorView dy, ConstTensorView x, ConstTensorView weight,
                       ConstTensorView inverse_rms, ConstTensorView residual, TensorView dx, TensorView dweight);

// Lookup in the rows [row_begin, row_begin + table.rows()) of a vocabulary. Ids outside this shard give zero rows and
// no gradient, so the sum over the shards is the whole lookup. ids [tokens, 1] int32.
// table [rows, hidden]; y [tokens, hidden] in the table's dtype.
void embedding_forward(KernelContext& context, ConstTensorView ids, ConstTensorView table, std::int64_t row_begin,
                       TensorView y);
// dtable [rows, hidden] float32, added to in token order.
void embedding_backward(KernelContext& context, ConstTensorView ids, ConstTensorView dy, std::int64_t row_begin,
                        TensorView dtable);

// SwiGLU: y = silu(gate) * up. gate_up [tokens, 2 * width], gate columns first; y [tokens, width]; same dtype, float32,
// bfloat16 or float16, computed in float32. Where `weights` [tokens, 1] float32 is not empty, y is the product times
// the weight of the token.
void swiglu_forward(KernelContext& context, ConstTensorView gate_up, ConstTensorView weights, TensorView y);
// dgate_up may be the same tensor as gate_up. dweights [tokens, 1] float32 = the sum over columns of dy * silu(gate) *
// up; empty without weights.
void swiglu_backward(KernelContext& context, ConstTensorView dy, ConstTensorView gate_up, ConstTensorView weights,
                     TensorView dgate_up, TensorView dweights);

// Per-head RMSNorm of queries and keys (optional) followed by rotary embedding, half-rotate form (GPT-NeoX, Llama).
// With d the head size, pair (i, i + d/2) turns by angle position * theta^(-2i/d). Values are not touched.
//
// qkv: [tokens, heads.columns()], float32, bfloat16 or float16. Row t has position t % sequence_length. Norm weights
// [head_dim, 1] in the dtype of qkv; empty without QK-norm.
struct RotaryOptions {
  HeadShape heads;
  double theta = 10000.0;
  float eps = 1e-6f;
  // The result of rotary_table, computed once for all calls.
  ConstTensorView table;
};

// Computes `options.table`, [positions of `runs`, head_dim] float32 in host memory. Row p belongs to the p-th position
// of `runs`: the head_dim / 2 cosines of its angles, then the sines. Angles are computed in double.
std::vector<float> rotary_table(const RotaryOptions& options, std::span<const Range> runs);

// Writes the heads of q and k: the first heads.value_column() columns of `rotated`, which may have more. It may be
// qkv itself.
void rotary_forward(KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                    ConstTensorView k_norm, TensorView rotated);
// In place, in the columns of q and k: from the gradient of the rotated heads to that of the heads of `qkv`. dqkv
// [tokens, heads.columns()]. With QK-norm, dq_norm and dk_norm [head_dim, 1] float32 are overwritten. Without QK-norm
// they are empty, and `qkv` may be empty too.
void rotary_backward(KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                     ConstTensorView k_norm, TensorView dqkv, TensorView dq_norm, TensorView dk_norm);

// Cross-entropy over a sharded vocabulary. Each shard reads its logits once for its maximum and sums. Shards exchange
// one number per token, shift their sums to the common maximum, and exchange two. logits [tokens, columns] float32 are
// those of vocabulary entries [begin, begin + columns). targets [tokens, 1] int32 are global ids. A target below 0
// marks a token that does not count, for example padding: it has neither loss nor gradient.
//
// maximum [tokens, 1] float32: largest logit of this shard, -infinity for an empty shard. sums [tokens, 2] float32: sum
// of exp(logit - maximum) and, if the target is in this shard, its logit - maximum (else 0). Both
// are relative to 0 where the maximum is -infinity.
void vocabulary_sums(KernelContext& context, ConstTensorView logits, ConstTensorView targets, std::int64_t begin,
                     TensorView maximum, TensorView sums);
// From the maximum of this shard, which has the vocabulary's `entries`, to the largest of all shards: sums of
// `of_shard` become sums of `maximum`. Both [tokens, 1] float32.
void shift_vocabulary_sums(KernelContext& context, ConstTensorView of_shard, ConstTensorView maximum,
                           ConstTensorView targets, Range entries, TensorView sums);
// With maximum and sums complete over all shards: dlogits = factor * (softmax - one_hot), in float32, bfloat16 or
// float16. A float32 `dlogits` may be `logits` itself. loss [1, 1] float64 += the sum over tokens of log(sum) - target,
// in nats, summed in double in an order that depends on the shape alone. An empty `loss` is skipped.
void cross_entropy_gradient(KernelContext& context, ConstTensorView logits, ConstTensorView maximum,
                            ConstTensorView sums, ConstTensorView targets, std::int64_t begin, float factor,
                            TensorView dlogits, TensorView loss);

}  // namespace weft
