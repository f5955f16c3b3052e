// Auxiliary losses of a router. Statistics are taken sequence by sequence, so that neither the microbatch size nor the
// layout changes the objective. All tensors are float32 or int32. T tokens of this rank, E experts, K choices per
// token, S tokens per sequence.
#pragma once

#include "layers/kernels/context.h"
#include "layers/model_config.h"

namespace weft {

// Tokens of a rank: row t is token first_token + t of its microbatch and belongs to sequence (first_token + t) /
// sequence_tokens. Under sequence parallelism a slice may begin and end inside a sequence.
struct TokenSlice {
  std::int64_t first_token = 0;
  std::int64_t sequence_tokens = 0;  // of each sequence in this microbatch: fewer than S under context parallelism
  std::int64_t sequence_length = 0;  // S
};

// scores [T, E] and indices [T, K] are results of route_forward. counts [sequences, E] float32: choices of each expert
// in each sequence. score_sums [sequences, E]: sums of scores over tokens; sigmoid scores are first divided by their
// sum over experts. Both are overwritten with this slice's share; their sums over tensor and context groups are
// complete.
void expert_statistics(KernelContext& context, ConstTensorView scores, ConstTensorView indices, Scoring scoring,
                       TokenSlice slice, TensorView counts, TensorView score_sums);
// From complete statistics: loss [1, 1] float64 += factor * the sum over sequences of E / (K S^2) * sum over e of
// score_sums[e] * counts[e], which is 1 per sequence for uniform routing (Fedus et al. 2021, Switch Transformers).
void auxiliary_loss(KernelContext& context, ConstTensorView counts, ConstTensorView score_sums, std::int64_t choices,
                    std::int64_t sequence_length, double factor, TensorView loss);
// counts (float32) = factor * choices (float64), equal numbers of elements.
void scale_counts(KernelContext& context, ConstTensorView choices, double factor, TensorView counts);
// dscores [T, E] += factor * gradient of auxiliary_loss, for the tokens of this slice. `counts` is complete and treated
// as constant.
void auxiliary_loss_backward(KernelContext& context, ConstTensorView scores, ConstTensorView counts, Scoring scoring,
                             TokenSlice slice, std::int64_t choices, float factor, TensorView dscores);

// loss [1, 1] float64 += factor * the sum over tokens of logsumexp(logits)^2 (Zoph et al. 2022, ST-MoE). dlogits [T, E]
// += the gradient of that sum, with `gradient_factor` in place of `factor`.
void z_loss(KernelContext& context, ConstTensorView logits, double factor, float gradient_factor, TensorView dlogits,
            TensorView loss);

struct LoadBalanceKernels {
  decltype(&expert_statistics) statistics;
  decltype(&weft::scale_counts) scale_counts;
  decltype(&weft::auxiliary_loss) auxiliary_loss;
  decltype(&weft::auxiliary_loss_backward) auxiliary_loss_backward;
  decltype(&weft::z_loss) z_loss;
};

}  // namespace weft
