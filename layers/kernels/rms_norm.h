// RMSNorm over the last dimension: y = w * x / sqrt(mean(x^2) + eps), statistics in float32.
// x, y: [tokens, hidden], float32, bfloat16 or float16 (all alike); weight [hidden, 1] in the same dtype; inverse_rms
// [tokens, 1] float32.
#pragma once

#include "layers/kernels/context.h"

namespace weft {

void rms_norm_forward(KernelContext& context, ConstTensorView x, ConstTensorView weight, float eps, TensorView y,
                      TensorView inverse_rms);
// dx = residual + gradient of x, computed in float32 and rounded once. The residual may be empty (none) or dx itself.
// dweight [hidden, 1] float32, the sum over tokens, is overwritten; an empty one is not computed.
void rms_norm_backward(KernelContext& context, ConstTensorView dy, ConstTensorView x, ConstTensorView weight,
                       ConstTensorView inverse_rms, ConstTensorView residual, TensorView dx, TensorView dweight);

struct RmsNormKernels {
  decltype(&rms_norm_forward) forward;
  decltype(&rms_norm_backward) backward;
};

}  // namespace weft
