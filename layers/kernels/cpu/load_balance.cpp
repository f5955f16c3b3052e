#include "layers/kernels/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace weft::cpu {
namespace {

WEFT_INLINE float sum_of(const float* values, std::int64_t count) {
  return lane_sum(
      count, [values](std::int64_t i) __attribute__((always_inline)) { return values[i]; });
}

WEFT_MULTIVERSION void add_scores(const float* scores, std::int64_t experts, bool normalise, float* sums) {
  const float inverse = normalise ? 1.0f / (sum_of(scores, experts) + smallest_sum) : 1.0f;
#pragma omp simd
  for (std::int64_t e = 0; e < experts; ++e) sums[e] += scores[e] * inverse;
}

// With Z the sum of s, p = s / Z, and c_e the gradient of the loss in p_e: dp_j/ds_e = (delta_je - p_j) / Z, hence
//   ds_e = (c_e - sum over j of c_j p_j) / Z.
WEFT_MULTIVERSION void add_score_gradient(const float* scores, const float* counts, std::int64_t experts,
                                          bool normalise, float factor, float* dscores) {
  float inverse = 1.0f, mean = 0.0f;
  if (normalise) {
    inverse = 1.0f / (sum_of(scores, experts) + smallest_sum);
    mean = inverse * lane_sum(
                         experts, [=](std::int64_t e) __attribute__((always_inline)) { return counts[e] * scores[e]; });
  }
#pragma omp simd
  for (std::int64_t e = 0; e < experts; ++e) dscores[e] += factor * inverse * (counts[e] - mean);
}

// d(lse^2)/dl_e = 2 lse softmax(l)_e. Returns the log-sum-exp of the row, whose last element counts 1 + `more` times.
WEFT_MULTIVERSION double add_z_gradient(const float* logits, std::int64_t experts, float more, float factor,
                                        float* dlogits) {
  const float largest = lane_maximum(logits, experts);
  const float others = more * exponential(logits[experts - 1] - largest);
  float sum = lane_sum(
      experts, [=](std::int64_t e) __attribute__((always_inline)) { return exponential(logits[e] - largest); });
  sum += others;
  const double log_sum_exp = static_cast<double>(largest) + std::log(static_cast<double>(sum));
  const float scale = 2.0f * factor * static_cast<float>(log_sum_exp) / sum;
#pragma omp simd
  for (std::int64_t e = 0; e < experts; ++e) dlogits[e] += scale * exponential(logits[e] - largest);
  dlogits[experts - 1] += scale * others;
  return log_sum_exp;
}

bool counts_in(const std::int32_t* targets, std::int64_t token) {
  return targets == nullptr || targets[token] != padding_target;
}

// E / (K S^2), where S is that of one sequence of `counts` if `length` is 0; 0 for a sequence without tokens.
double scale_of(const float* counts, std::int64_t experts, std::int64_t choices, std::int64_t length) {
  auto tokens = static_cast<double>(length);
  if (length == 0) {
    for (std::int64_t e = 0; e < experts; ++e) tokens += static_cast<double>(counts[e]);
    tokens /= static_cast<double>(choices);
  }
  return tokens == 0.0 ? 0.0 : static_cast<double>(experts) / (static_cast<double>(choices) * tokens * tokens);
}

}  // namespace

void expert_statistics(KernelContext&, ConstTensorView scores, ConstTensorView indices, Scoring scoring,
                       TokenSlice slice, TensorView counts, TensorView score_sums) {
  const std::int64_t tokens = scores.rows(), experts = scores.columns(), choices = indices.columns();
  float* count = counts.as<float>().data();
  float* sums = score_sums.as<float>().data();
  std::fill_n(count, counts.size(), 0.0f);
  std::fill_n(sums, score_sums.size(), 0.0f);
  const float* score = scores.as<float>().data();
  const std::int32_t* chosen = indices.as<std::int32_t>().data();
  for (std::int64_t token = 0; token < tokens; ++token, score += experts, chosen += choices) {
    if (!counts_in(slice.targets, token)) continue;
    const std::int64_t begin = (slice.first_token + token) / slice.sequence_tokens * experts;
    add_scores(score, experts, scoring != Scoring::softmax, sums + begin);
    for (std::int64_t k = 0; k < choices; ++k) count[begin + chosen[k]] += 1.0f;
  }
}

void scale_counts(KernelContext&, ConstTensorView choices, double total, TensorView counts) {
  const auto from = choices.as<double>();
  const auto to = counts.as<float>();
  const double sum = std::accumulate(from.begin(), from.end(), 0.0);  // exact
  const double factor = sum == 0.0 ? 0.0 : total / sum;
  for (std::size_t e = 0; e < to.size(); ++e) to[e] = static_cast<float>(factor * from[e]);
}

void auxiliary_loss(KernelContext&, ConstTensorView counts, ConstTensorView score_sums, std::int64_t choices,
                    std::int64_t sequence_length, double factor, TensorView loss) {
  const std::int64_t experts = counts.columns();
  const float* count = counts.as<float>().data();
  const float* sums = score_sums.as<float>().data();
  double all = 0.0;
  for (std::int64_t sequence = 0; sequence < counts.rows(); ++sequence, count += experts, sums += experts) {
    double sum = 0.0;
    for (std::int64_t e = 0; e < experts; ++e) sum += static_cast<double>(count[e]) * static_cast<double>(sums[e]);
    all += scale_of(count, experts, choices, sequence_length) * sum;
  }
  loss.as<double>()[0] += factor * all;
}

void auxiliary_loss_backward(KernelContext&, ConstTensorView scores, ConstTensorView counts, Scoring scoring,
                             TokenSlice slice, std::int64_t choices, float factor, TensorView dscores) {
  const std::int64_t tokens = scores.rows(), experts = scores.columns();
  const float* score = scores.as<float>().data();
  const float* count = counts.as<float>().data();
  float* gradient = dscores.as<float>().data();
  for (std::int64_t token = 0; token < tokens; ++token, score += experts, gradient += experts) {
    if (!counts_in(slice.targets, token)) continue;
    const float* of_sequence = count + (slice.first_token + token) / slice.sequence_tokens * experts;
    const double scale = scale_of(of_sequence, experts, choices, slice.sequence_length);
    add_score_gradient(score, of_sequence, experts, scoring != Scoring::softmax,
                       static_cast<float>(static_cast<double>(factor) * scale), gradient);
  }
}

void z_loss(KernelContext&, ConstTensorView logits, std::int64_t copies, const std::int32_t* targets, double factor,
            float gradient_factor, TensorView dlogits, TensorView loss) {
  const std::int64_t experts = logits.columns();
  const float* logit = logits.as<float>().data();
  float* gradient = dlogits.as<float>().data();
  double sum = 0.0;
  for (std::int64_t token = 0; token < logits.rows(); ++token, logit += experts, gradient += experts) {
    if (!counts_in(targets, token)) continue;
    const double log_sum_exp =
        add_z_gradient(logit, experts, static_cast<float>(copies - 1), gradient_factor, gradient);
    sum += log_sum_exp * log_sum_exp;
  }
  loss.as<double>()[0] += factor * sum;
}

}  // namespace weft::cpu
