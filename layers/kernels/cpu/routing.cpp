#include "layers/kernels/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "layers/kernels/router_arithmetic.h"

namespace weft::cpu {

namespace {

WEFT_MULTIVERSION void score_rows(const float* logits, Scoring scoring, std::int64_t rows, std::int64_t experts,
                                  float* scores) {
  const std::int64_t count = rows * experts;
  switch (scoring) {
    case Scoring::softmax:
      for (std::int64_t row = 0; row < rows; ++row, logits += experts, scores += experts) {
        const float largest = lane_maximum(logits, experts);
#pragma omp simd
        for (std::int64_t e = 0; e < experts; ++e) scores[e] = exponential(logits[e] - largest);
        const float sum = lane_sum(
            experts, [scores](std::int64_t e) __attribute__((always_inline)) { return scores[e]; });
#pragma omp simd
        for (std::int64_t e = 0; e < experts; ++e) scores[e] /= sum;
      }
      break;
    case Scoring::sigmoid:
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) scores[i] = logistic(logits[i]);
      break;
    case Scoring::sqrt_softplus:
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) scores[i] = std::sqrt(softplus(logits[i]));
      break;
  }
}

static_assert(most_expert_groups <= groups_of_mask);

template <typename Value>
void choose(const Value& value, const RoutingRule& rule, int experts, int choices, std::int32_t* chosen) {
  const auto groups = static_cast<int>(rule.groups);
  const std::uint32_t mask = choose_groups(value, experts, groups, static_cast<int>(rule.chosen_groups));
  choose_experts(value, experts, mask, experts / groups, choices, chosen);
}

bool is_padding(const std::int32_t* targets, std::int64_t token) {
  return targets != nullptr && targets[token] == padding_target;
}

// Of the choices below `real`, which are experts; the others are null slots.
float chosen_sum(const float* scores, const std::int32_t* chosen, std::int64_t choices, std::int64_t real) {
  float sum = smallest_sum;
  for (std::int64_t k = 0; k < choices; ++k) sum += chosen[k] < real ? scores[chosen[k]] : 0.0f;
  return sum;
}

// Adds the gradient through `weights` of one token to `dscores`. With F the scaling, without normalisation w_k = F s_k
// and ds_k = F dw_k. With it w_k = F s_k / S, S the sum of the chosen s_j, and dw_k/ds_j = F (delta_kj - s_k / S) / S,
// hence
//   ds_j = F (dw_j - sum over k of dw_k s_k / S) / S.
void add_weight_gradient(const float* dweights, const float* scores, const std::int32_t* chosen, std::int64_t choices,
                         std::int64_t real, const RoutingRule& rule, float* dscores) {
  float mean = 0.0f, scale = rule.scaling;
  if (rule.normalise) {
    const float inverse = 1.0f / chosen_sum(scores, chosen, choices, real);
    for (std::int64_t k = 0; k < choices; ++k) {
      if (chosen[k] < real) mean += dweights[k] * scores[chosen[k]] * inverse;
    }
    scale *= inverse;
  }
  for (std::int64_t k = 0; k < choices; ++k) {
    if (chosen[k] < real) dscores[chosen[k]] += (dweights[k] - mean) * scale;
  }
}

// From the gradient of a token's scores to that of its logits.
WEFT_MULTIVERSION void score_backward_row(Scoring scoring, const float* scores, std::int64_t experts, float* gradient) {
  switch (scoring) {
    case Scoring::softmax: {  // ds_j/dl_i = s_j (delta_ij - s_i), hence dl_i = s_i (ds_i - sum over j of ds_j s_j)
      const float mean = lane_sum(
          experts, [=](std::int64_t e) __attribute__((always_inline)) { return gradient[e] * scores[e]; });
#pragma omp simd
      for (std::int64_t e = 0; e < experts; ++e) gradient[e] = scores[e] * (gradient[e] - mean);
      break;
    }
    case Scoring::sigmoid:  // dl_i = ds_i s_i (1 - s_i)
#pragma omp simd
      for (std::int64_t e = 0; e < experts; ++e) gradient[e] *= scores[e] * (1.0f - scores[e]);
      break;
    case Scoring::sqrt_softplus:
#pragma omp simd
      for (std::int64_t e = 0; e < experts; ++e) gradient[e] *= sqrt_softplus_slope(scores[e]);
      break;
  }
}

}  // namespace

void route_forward(KernelContext&, ConstTensorView logits, const RoutingRule& rule, ConstTensorView bias,
                   const std::int32_t* targets, TensorView scores, TensorView indices, TensorView weights) {
  const std::int64_t tokens = logits.rows(), experts = scores.columns(), choices = indices.columns();
  const float *logit = logits.as<float>().data(), *score = scores.as<float>().data();
  const std::int64_t real = experts - rule.null_copies;
  if (rule.null_copies > 0) {  // scores are computed in place of their logits
    float* copy = scores.as<float>().data();
    for (std::int64_t token = 0; token < tokens; ++token, logit += real + 1) {
      copy = std::fill_n(std::copy_n(logit, real, copy), rule.null_copies, logit[real]);
    }
    logit = score;
  }
  score_rows(logit, rule.scoring, tokens, experts, scores.as<float>().data());
  if (choices == 0) return;
  const float* added = bias.empty() ? nullptr : bias.as<float>().data();
  std::int32_t* chosen = indices.as<std::int32_t>().data();
  float* weight = weights.as<float>().data();
  const auto all = static_cast<int>(experts), some = static_cast<int>(choices);
  for (std::int64_t token = 0; token < tokens; ++token, score += experts, chosen += choices, weight += choices) {
    if (is_padding(targets, token)) {
      std::fill_n(chosen, choices, no_expert);
      std::fill_n(weight, choices, 0.0f);
      continue;
    }
    if (rule.in_turn) {
      const std::int64_t first = rule.places(token) * choices;
      for (int k = 0; k < some; ++k) chosen[k] = static_cast<std::int32_t>((first + k) % experts);
    } else if (added != nullptr) {
      choose([=](int e) { return score[e] + added[std::min<std::int64_t>(e, real)]; }, rule, all, some, chosen);
    } else {
      choose([=](int e) { return score[e]; }, rule, all, some, chosen);
    }
    const float sum = rule.normalise ? chosen_sum(score, chosen, choices, real) : 1.0f;
    for (std::int64_t k = 0; k < choices; ++k) {
      weight[k] = chosen[k] < real ? score[chosen[k]] / sum * rule.scaling : 0.0f;
    }
  }
}

void route_backward(KernelContext&, ConstTensorView dweights, ConstTensorView dscores, ConstTensorView scores,
                    ConstTensorView indices, const RoutingRule& rule, TensorView dlogits) {
  const std::int64_t tokens = scores.rows(), experts = scores.columns(), choices = indices.columns();
  const float* score = scores.as<float>().data();
  const float* dweight = dweights.as<float>().data();
  const std::int32_t* chosen = indices.as<std::int32_t>().data();
  const std::int64_t real = experts - rule.null_copies;
  float* gradient = dlogits.as<float>().data();
  std::vector<float> row(static_cast<std::size_t>(experts));
  for (std::int64_t token = 0; token < tokens; ++token) {
    if (dscores.empty()) {
      std::ranges::fill(row, 0.0f);
    } else {
      std::copy_n(dscores.as<float>().data() + token * experts, experts, row.data());
    }
    const bool routed = choices > 0 && chosen[0] != no_expert;
    if (routed) add_weight_gradient(dweight, score, chosen, choices, real, rule, row.data());
    score_backward_row(rule.scoring, score, experts, row.data());
    gradient = std::copy_n(row.data(), real, gradient);
    if (real < experts) *gradient++ = std::reduce(row.begin() + real, row.end());
    score += experts, dweight += choices, chosen += choices;
  }
}

void jitter_rows(KernelContext&, ConstTensorView x, ConstTensorView keys, std::uint32_t salt, float noise,
                 TensorView y) {
  const float* from = x.as<float>().data();
  float* to = y.as<float>().data();
  const std::int64_t columns = x.columns();
  for (const std::int32_t key : keys.as<std::int32_t>()) {
    for (std::int64_t column = 0; column < columns; ++column) {
      to[column] = from[column] *
                   jitter_factor(static_cast<std::uint32_t>(key) ^ salt, static_cast<std::uint32_t>(column), noise);
    }
    from += columns, to += columns;
  }
}

namespace {

struct Choice {
  std::int32_t key = 0;  // of the weight, in its order; the sign of a NaN does not count
  std::size_t place = 0;
};

}  // namespace

void limit_choices(KernelContext&, ConstTensorView weights, std::int64_t sequence_length, std::int64_t experts,
                   std::int64_t capacity, DropPolicy policy, TensorView indices) {
  const auto weight = weights.as<float>();
  const auto index = indices.as<std::int32_t>();
  const auto of_sequence = static_cast<std::size_t>(sequence_length * indices.columns());
  const auto room = static_cast<std::size_t>(capacity);
  std::vector<std::vector<Choice>> by_expert(static_cast<std::size_t>(experts));
  for (std::size_t begin = 0; begin < index.size(); begin += of_sequence) {
    for (std::vector<Choice>& choices : by_expert) choices.clear();
    for (std::size_t i = begin; i < begin + of_sequence; ++i) {
      if (index[i] == no_expert) continue;
      const auto key = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(weight[i]) & 0x7fffffffu);
      by_expert[static_cast<std::size_t>(index[i])].push_back({key, i});
    }
    for (std::vector<Choice>& choices : by_expert) {
      if (choices.size() <= room) continue;
      if (policy == DropPolicy::probability) {
        std::ranges::stable_sort(choices, std::ranges::greater{}, &Choice::key);
      }
      for (std::size_t c = room; c < choices.size(); ++c) index[choices[c].place] = no_expert;
    }
  }
}

void spread_slots(KernelContext&, ConstTensorView indices, ConstTensorView counts, std::int64_t rows,
                  TensorView slots) {
  const auto index = indices.as<std::int32_t>(), count = counts.as<std::int32_t>();
  std::vector<std::int64_t> farther(count.size());  // what is added to the slots of an expert
  std::int64_t before = 0;
  for (std::size_t e = 0; e < count.size(); before += count[e], ++e) {
    farther[e] = static_cast<std::int64_t>(e) * rows - before;
  }
  const auto slot = slots.as<std::int32_t>();
  for (std::size_t i = 0; i < slot.size(); ++i) {
    if (slot[i] != no_expert) slot[i] += static_cast<std::int32_t>(farther[static_cast<std::size_t>(index[i])]);
  }
}

void add_dropped(KernelContext&, ConstTensorView indices, ConstTensorView slots, TensorView total) {
  const auto index = indices.as<std::int32_t>();
  const auto slot = slots.as<std::int32_t>();
  std::int64_t dropped = 0;
  for (std::size_t i = 0; i < index.size(); ++i) dropped += index[i] != no_expert && slot[i] == no_expert ? 1 : 0;
  total.as<double>()[0] += static_cast<double>(dropped);
}

}  // namespace weft::cpu
