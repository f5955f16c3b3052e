// SwiGLU: y = silu(gate) * up. gate_up [tokens, 2 * width], gate columns first; y [tokens, width]; same dtype, float32,
// bfloat16 or float16, computed in float32.
#pragma once

#include "layers/kernels/context.h"

namespace weft {

void swiglu_forward(KernelContext& context, ConstTensorView gate_up, TensorView y);
// dgate_up may be the same tensor as gate_up.
void swiglu_backward(KernelContext& context, ConstTensorView dy, ConstTensorView gate_up, TensorView dgate_up);

struct SwigluKernels {
  decltype(&swiglu_forward) forward;
  decltype(&swiglu_backward) backward;
};

}  // namespace weft
