// The choice of a MoE router; permutation.h sorts the tokens by it. All tensors are float32 or int32. Integers and
// orders are exact, so the same logits give the same routing on every device. T tokens, E experts, K choices per token.
#pragma once

#include "layers/kernels/context.h"
#include "layers/model_config.h"

namespace weft {

// Avoids 0 / 0 if all scores of a token underflow to zero.
constexpr float smallest_sum = 1e-20f;

// logits [T, E]. scores [T, E]: softmax or sigmoid of the logits. indices [T, K]: the K largest scores, ties to the
// lower expert, in descending order. weights [T, K]: their scores, divided by their sum (+ smallest_sum) when
// `normalise`.
void route_forward(KernelContext& context, ConstTensorView logits, Scoring scoring, bool normalise, TensorView scores,
                   TensorView indices, TensorView weights);
// dlogits [T, E] = gradient through `weights` (dweights [T, K]) and through `scores` directly (dscores [T, E], empty
// for none).
void route_backward(KernelContext& context, ConstTensorView dweights, ConstTensorView dscores, ConstTensorView scores,
                    ConstTensorView indices, Scoring scoring, bool normalise, TensorView dlogits);

struct RoutingKernels {
  decltype(&route_forward) forward;
  decltype(&route_backward) backward;
};

}  // namespace weft
