// Per-head RMSNorm of queries and keys (optional) followed by rotary embedding, half-rotate form (GPT-NeoX, Llama):
// with d the head size, pair (i, i + d/2) turns by angle position * theta^(-2i/d). Values are not touched.
//
// qkv: [tokens, heads.columns()], float32, bfloat16 or float16. Row t has position t % sequence_length. Norm weights
// [head_dim, 1] in the dtype of qkv; empty without QK-norm.
#pragma once

#include <span>
#include <vector>

#include "layers/kernels/context.h"
#include "layers/kernels/head_shape.h"
#include "parallel/runtime/range.h"

namespace weft {

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

struct RotaryKernels {
  decltype(&rotary_forward) forward;
  decltype(&rotary_backward) backward;
};

}  // namespace weft
