#include "layers/kernels/cpu/kernels.h"

#include <algorithm>

#include "layers/kernels/cpu/vector_math.h"

namespace weft::cpu {
namespace {

WEFT_MULTIVERSION void softmax_rows(const float* logits, std::int64_t rows, std::int64_t experts, float* scores) {
  for (std::int64_t row = 0; row < rows; ++row, logits += experts, scores += experts) {
    float largest = logits[0];
#pragma omp simd reduction(max : largest)
    for (std::int64_t e = 0; e < experts; ++e) largest = logits[e] > largest ? logits[e] : largest;
#pragma omp simd
    for (std::int64_t e = 0; e < experts; ++e) scores[e] = exponential(logits[e] - largest);
    const float sum = lane_sum(
        experts, [scores](std::int64_t e) __attribute__((always_inline)) { return scores[e]; });
#pragma omp simd
    for (std::int64_t e = 0; e < experts; ++e) scores[e] /= sum;
  }
}

WEFT_MULTIVERSION void sigmoid_elements(const float* logits, std::int64_t count, float* scores) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) scores[i] = logistic(logits[i]);
}

// Insertion into a short sorted list. Experts come in ascending order and move past strictly smaller scores only, so
// the lower of two equal experts stays first. A NaN moves past nothing, so the `choices` experts are all different.
void select_largest(const float* scores, std::int64_t experts, std::int64_t choices, std::int32_t* chosen) {
  for (std::int64_t e = 0; e < experts; ++e) {
    if (e >= choices && !(scores[e] > scores[chosen[choices - 1]])) continue;
    std::int64_t at = std::min(e, choices - 1);
    for (; at > 0 && scores[e] > scores[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<std::int32_t>(e);
  }
}

float chosen_sum(const float* scores, const std::int32_t* chosen, std::int64_t choices) {
  float sum = smallest_sum;
  for (std::int64_t k = 0; k < choices; ++k) sum += scores[chosen[k]];
  return sum;
}

// Adds the gradient through `weights` of one token to `dscores`. Without normalisation w_k = s_k and ds_k = dw_k. With
// it w_k = s_k / S, S the sum of the chosen s_j, and dw_k/ds_j = (delta_kj - w_k) / S, hence
//   ds_j = (dw_j - sum over k of dw_k w_k) / S.
void add_weight_gradient(const float* dweights, const float* scores, const std::int32_t* chosen, std::int64_t choices,
                         bool normalise, float* dscores) {
  float mean = 0.0f, scale = 1.0f;
  if (normalise) {
    scale = 1.0f / chosen_sum(scores, chosen, choices);
    for (std::int64_t k = 0; k < choices; ++k) mean += dweights[k] * scores[chosen[k]] * scale;
  }
  for (std::int64_t k = 0; k < choices; ++k) dscores[chosen[k]] += (dweights[k] - mean) * scale;
}

// softmax: ds_j/dl_i = s_j (delta_ij - s_i), hence dl_i = s_i (ds_i - sum over j of ds_j s_j).
WEFT_MULTIVERSION void softmax_backward_row(const float* scores, std::int64_t experts, float* gradient) {
  const float mean = lane_sum(
      experts, [=](std::int64_t e) __attribute__((always_inline)) { return gradient[e] * scores[e]; });
#pragma omp simd
  for (std::int64_t e = 0; e < experts; ++e) gradient[e] = scores[e] * (gradient[e] - mean);
}

// sigmoid: dl_i = ds_i s_i (1 - s_i).
WEFT_MULTIVERSION void sigmoid_backward_row(const float* scores, std::int64_t experts, float* gradient) {
#pragma omp simd
  for (std::int64_t e = 0; e < experts; ++e) gradient[e] *= scores[e] * (1.0f - scores[e]);
}

}  // namespace

void route_forward(KernelContext&, ConstTensorView logits, Scoring scoring, bool normalise, TensorView scores,
                   TensorView indices, TensorView weights) {
  const std::int64_t tokens = logits.rows(), experts = logits.columns(), choices = indices.columns();
  if (logits.empty()) return;
  float* score = scores.as<float>().data();
  if (scoring == Scoring::softmax) {
    softmax_rows(logits.as<float>().data(), tokens, experts, score);
  } else {
    sigmoid_elements(logits.as<float>().data(), logits.size(), score);
  }
  if (choices == 0) return;
  std::int32_t* chosen = indices.as<std::int32_t>().data();
  float* weight = weights.as<float>().data();
  for (std::int64_t token = 0; token < tokens; ++token, score += experts, chosen += choices, weight += choices) {
    select_largest(score, experts, choices, chosen);
    const float sum = normalise ? chosen_sum(score, chosen, choices) : 1.0f;
    for (std::int64_t k = 0; k < choices; ++k) weight[k] = score[chosen[k]] / sum;
  }
}

void route_backward(KernelContext&, ConstTensorView dweights, ConstTensorView dscores, ConstTensorView scores,
                    ConstTensorView indices, Scoring scoring, bool normalise, TensorView dlogits) {
  const std::int64_t tokens = scores.rows(), experts = scores.columns(), choices = indices.columns();
  const float* score = scores.as<float>().data();
  const float* dweight = dweights.as<float>().data();
  const std::int32_t* chosen = indices.as<std::int32_t>().data();
  float* gradient = dlogits.as<float>().data();
  if (dscores.empty()) {
    std::fill_n(gradient, dlogits.size(), 0.0f);
  } else {
    std::copy_n(dscores.as<float>().data(), dlogits.size(), gradient);
  }
  for (std::int64_t token = 0; token < tokens; ++token) {
    add_weight_gradient(dweight, score, chosen, choices, normalise, gradient);
    if (scoring == Scoring::softmax) {
      softmax_backward_row(score, experts, gradient);
    } else {
      sigmoid_backward_row(score, experts, gradient);
    }
    score += experts, gradient += experts, dweight += choices, chosen += choices;
  }
}

const RoutingKernels routing_kernels = {route_forward, route_backward};

}  // namespace weft::cpu
