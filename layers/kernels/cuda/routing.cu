// The router: scores, choice of experts, and their gradient. One warp per token; lane l has the experts l, l + 32, and
// so on, in registers for up to 1024 experts.
//
// Scores and weights have the same bits as on the CPU: the same exponential, and sums in the same order of additions. A
// tie is therefore a tie on every device.
//
// Bytes per token, forward: 4 E read (scores and bias again from a cache), 4 E + 8 K written. Backward: 8 E + 8 K read
// (4 E less without dscores), 4 E written.
#include <algorithm>
#include <bit>
#include <iterator>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/elementary.h"
#include "layers/kernels/router_arithmetic.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int warps_of_block = 8;
constexpr float no_score = -1.0f;  // score of a lane without an expert; real scores are not negative

__device__ std::int64_t token_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / warp_size;
}

// The scores of one lane: `scores_of_lane` registers. With 0 registers, the row in memory; a lane accesses its own
// elements only.
template <int scores_of_lane>
struct LaneScores {
  float values[scores_of_lane];

  __device__ LaneScores(float*, int) {}
  __device__ int count() const { return scores_of_lane; }
  __device__ float get(int i) const { return values[i]; }
  __device__ void set(int i, float value) { values[i] = value; }
};
template <>
struct LaneScores<0> {
  float* row;
  int experts;

  __device__ LaneScores(float* scores, int expert_count) : row(scores), experts(expert_count) {}
  __device__ int count() const { return (experts + warp_size - 1) / warp_size; }
  __device__ float get(int i) const {
    const int expert = i * warp_size + lane_of_warp();
    return expert < experts ? row[expert] : no_score;
  }
  __device__ void set(int i, float value) {
    const int expert = i * warp_size + lane_of_warp();
    if (expert < experts) row[expert] = value;
  }
};

// The CPU's sum of a row: 16 partial sums, each over every 16th expert in ascending order, folded in halves. Lanes l
// and l + 16 have alternate terms of one partial sum.
template <typename Scores>
__device__ float lane_sum(const Scores& scores) {
  const bool lower = lane_of_warp() < 16;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < scores.count(); ++i) {
    const float score = scores.get(i);
    const float own = score == no_score ? 0.0f : score;
    const float other = __shfl_xor_sync(all_lanes_of_warp, own, 16);
    sum += lower ? own : other;
    sum += lower ? other : own;
  }
  return reduce_lanes(sum, 16, AddTo());
}

// Integers in the order of the numbers; all are larger than `no_key`. Scores are not negative, and a sum with a score
// is never -0, so equal numbers have equal keys.
constexpr int no_key = -0x7fffffff - 1;
__device__ int key_of(float value) {
  const int bits = __float_as_int(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// The values by which a token chooses experts, in memory: its scores, plus a bias if there is one. From `real` on there
// are null slots, with one bias and no weight.
struct Values {
  const float* scores;
  const float* bias;
  int real;

  __device__ float operator()(int expert) const {
    return bias == nullptr ? scores[expert] : scores[expert] + bias[min(expert, real)];
  }
};

// The groups of experts that a token chooses from; a lane takes the value of one group.
__device__ std::uint32_t chosen_groups(const Values& values, int experts, int groups, int chosen) {
  if (groups == chosen) return all_expert_groups;
  const int lane = lane_of_warp();
  const float own = lane < groups ? group_value(values, lane, experts / groups) : 0.0f;
  int before = 0;
  for (int g = 0; g < groups; ++g) {
    const float other = __shfl_sync(all_lanes_of_warp, own, g);
    if (other > own || (other == own && g < lane)) ++before;
  }
  return __ballot_sync(all_lanes_of_warp, lane < groups && before < chosen);
}

// Keys of one lane's experts: registers, or computed again in each round.
template <int keys_of_lane>
struct LaneKeys {
  int keys[keys_of_lane];

  template <typename Key>
  __device__ LaneKeys(const Key& key, int) {
#pragma unroll
    for (int i = 0; i < keys_of_lane; ++i) keys[i] = key(i * warp_size + lane_of_warp());
  }
  __device__ int count() const {
    return keys_of_lane;
  }
  __device__ int get(int i) const {
    return keys[i];
  }
};
template <typename Key>
struct ComputedKeys {
  const Key& key;
  int experts;

  __device__ int count() const { return (experts + warp_size - 1) / warp_size; }
  __device__ int get(int i) const { return key(i * warp_size + lane_of_warp()); }
};

// Writes the experts of the largest keys in descending order, ties to the lower expert, and their scores. Returns the
// sum of the scores in that order. Each round takes the next one after the previous round's.
template <typename Keys>
__device__ float select_largest(const Keys& keys, const Values& values, int choices, std::int32_t* chosen,
                                float* weights) {
  const int lane = lane_of_warp();
  float sum = smallest_sum;
  int last_key = 0x7fffffff, last_expert = -1;
  for (int k = 0; k < choices; ++k) {
    int best_key = no_key, best_expert = 0x7fffffff;
#pragma unroll
    for (int i = 0; i < keys.count(); ++i) {
      const int key = keys.get(i), expert = i * warp_size + lane;
      const bool later = key < last_key || (key == last_key && expert > last_expert);
      if (later && key > best_key) best_key = key, best_expert = expert;
    }
    last_key = __reduce_max_sync(all_lanes_of_warp, best_key);
    last_expert = __reduce_min_sync(all_lanes_of_warp, best_key == last_key ? best_expert : 0x7fffffff);
    // Without a bias the key is the score itself.
    float score = values.bias == nullptr ? __int_as_float(last_key) : values.scores[last_expert];
    if (last_expert >= values.real) score = 0.0f;
    sum += score;
    if (lane == 0) chosen[k] = last_expert, weights[k] = score;
  }
  return sum;
}

struct ForwardArguments {
  const float* logits;
  const float* bias;            // null: none
  const std::int32_t* targets;  // null: no token is padding
  std::int64_t tokens;
  int experts, real, choices, groups, chosen_groups;  // the experts from `real` on are null slots
  Scoring scoring;
  bool normalise, in_turn;
  TokenPlaces places;
  float scaling;
  float* scores;
  std::int32_t* indices;
  float* weights;
};

// The scores of one token, in registers and in memory. Returns whether any is NaN.
template <int scores_of_lane>
__device__ bool score_token(const ForwardArguments& all, const float* logits, float* row) {
  const int lane = lane_of_warp(), experts = all.experts;
  LaneScores<scores_of_lane> scores(row, experts);
  bool any_nan = false;
  if (all.scoring == Scoring::softmax) {
    float largest = __int_as_float(0xff800000);
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      const int expert = i * warp_size + lane;
      const float logit = expert < experts ? logits[min(expert, all.real)] : __int_as_float(0xff800000);
      if constexpr (scores_of_lane > 0) scores.set(i, logit);
      largest = fmaxf(largest, logit);
    }
    largest = reduce_warp(largest, LargerNumber());
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      const int expert = i * warp_size + lane;
      float logit = 0.0f;
      if constexpr (scores_of_lane > 0) {
        logit = scores.get(i);
      } else if (expert < experts) {
        logit = logits[min(expert, all.real)];
      }
      scores.set(i, expert < experts ? exponential(logit - largest) : no_score);
    }
    const float sum = lane_sum(scores);
    any_nan = sum != sum;
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      if (i * warp_size + lane < experts) scores.set(i, scores.get(i) / sum);
    }
  } else {
    const bool sigmoid = all.scoring == Scoring::sigmoid;
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      const int expert = i * warp_size + lane;
      const float logit = expert < experts ? logits[min(expert, all.real)] : 0.0f;
      const float score = expert >= experts ? no_score : sigmoid ? logistic(logit) : sqrtf(softplus(logit));
      any_nan = any_nan || score != score;
      scores.set(i, score);
    }
    any_nan = __any_sync(all_lanes_of_warp, any_nan);
  }
  if constexpr (scores_of_lane > 0) {
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      if (i * warp_size + lane < experts) row[i * warp_size + lane] = scores.get(i);
    }
  }
  return any_nan;
}

template <int scores_of_lane>
__global__ void forward_kernel(const ForwardArguments all) {
  const std::int64_t token = token_of_warp();
  if (token >= all.tokens) return;
  const int lane = lane_of_warp(), experts = all.experts, choices = all.choices;
  float* row = all.scores + token * experts;
  std::int32_t* indices = all.indices + token * choices;
  float* weights = all.weights + token * choices;
  const int columns = min(experts, all.real + 1);
  const bool any_nan = score_token<scores_of_lane>(all, all.logits + token * columns, row);
  if (choices == 0) return;
  if (all.targets != nullptr && all.targets[token] == padding_target) {
    for (int k = lane; k < choices; k += warp_size) indices[k] = no_expert, weights[k] = 0.0f;
    return;
  }

  __syncwarp();
  const Values values{row, all.bias, all.real};
  const int experts_of_group = experts / all.groups;
  float sum = 1.0f;
  if (any_nan || all.in_turn) {
    if (lane == 0) {
      if (all.in_turn) {
        const std::int64_t first = all.places(token) * choices;
        for (int k = 0; k < choices; ++k) indices[k] = static_cast<std::int32_t>((first + k) % experts);
      } else {
        const std::uint32_t mask = choose_groups(values, experts, all.groups, all.chosen_groups);
        choose_experts(values, experts, mask, experts_of_group, choices, indices);
      }
      sum = smallest_sum;
      for (int k = 0; k < choices; ++k) {
        weights[k] = indices[k] < all.real ? row[indices[k]] : 0.0f;
        sum += weights[k];
      }
    }
    sum = __shfl_sync(all_lanes_of_warp, sum, 0);
  } else {
    const std::uint32_t mask = chosen_groups(values, experts, all.groups, all.chosen_groups);
    const auto key = [&](int expert) {
      if (expert >= experts) return no_key;
      if (mask != all_expert_groups && (mask >> (expert / experts_of_group) & 1u) == 0) return no_key;
      return key_of(values(expert));
    };
    if constexpr (scores_of_lane > 0) {
      sum = select_largest(LaneKeys<scores_of_lane>(key, experts), values, choices, indices, weights);
    } else {
      sum = select_largest(ComputedKeys<decltype(key)>{key, experts}, values, choices, indices, weights);
    }
  }
  if (!all.normalise && all.scaling == 1.0f) return;
  __syncwarp();
  for (int k = lane; k < choices; k += warp_size) weights[k] = weights[k] / (all.normalise ? sum : 1.0f) * all.scaling;
}

// The gradient of the scores is dscores plus, for chosen experts, the gradient through the weights (formulas in the
// CPU's routing.cpp). All experts are written as if not chosen, then the chosen ones are overwritten. From `real` on
// there are null slots, whose gradients are those of one logit.
__global__ void backward_kernel(const float* dweights, const float* dscores, const float* scores,
                                const std::int32_t* indices, std::int64_t tokens, int experts, int real, int choices,
                                Scoring scoring, bool normalise, float scaling, float* dlogits) {
  const std::int64_t token = token_of_warp();
  if (token >= tokens) return;
  const int lane = lane_of_warp();
  dweights += token * choices;
  indices += token * choices;
  scores += token * experts;
  dlogits += token * min(experts, real + 1);
  if (dscores != nullptr) dscores += token * experts;

  if (choices > 0 && indices[0] == no_expert) choices = 0;
  float scale = scaling, mean = 0.0f;
  if (normalise) {
    float sum = 0.0f;
    for (int k = lane; k < choices; k += warp_size) {
      const float score = indices[k] < real ? scores[indices[k]] : 0.0f;
      sum += score;
      mean += dweights[k] * score;
    }
    const float inverse = 1.0f / (smallest_sum + sum_of_warp(sum));
    mean = sum_of_warp(mean) * inverse;
    scale = scaling * inverse;
  }
  // For softmax: the sum over experts of gradient times score.
  float product = 0.0f;
  if (scoring == Scoring::softmax) {
    for (int k = lane; k < choices; k += warp_size) {
      if (indices[k] < real) product += (dweights[k] - mean) * scale * scores[indices[k]];
    }
    if (dscores != nullptr) {
#pragma unroll 4
      for (int expert = lane; expert < experts; expert += warp_size) product += dscores[expert] * scores[expert];
    }
    product = sum_of_warp(product);
  }
  const auto dlogit = [=](float score, float gradient) {
    if (scoring == Scoring::softmax) return score * (gradient - product);
    return gradient * (scoring == Scoring::sigmoid ? score * (1.0f - score) : sqrt_softplus_slope(score));
  };
  float of_null = 0.0f;
#pragma unroll 4
  for (int expert = lane; expert < experts; expert += warp_size) {
    const float gradient = dlogit(scores[expert], dscores != nullptr ? dscores[expert] : 0.0f);
    if (expert < real) {
      dlogits[expert] = gradient;
    } else {
      of_null += gradient;
    }
  }
  if (real < experts) {
    of_null = sum_of_warp(of_null);
    if (lane == 0) dlogits[real] = of_null;
  }
  __syncwarp();
  for (int k = lane; k < choices; k += warp_size) {
    const int expert = indices[k];
    if (expert >= real) continue;
    const float direct = dscores != nullptr ? dscores[expert] : 0.0f;
    dlogits[expert] = dlogit(scores[expert], direct + (dweights[k] - mean) * scale);
  }
}

// Reads and writes 4 bytes an element.
__global__ void jitter_kernel(const float* x, const std::int32_t* keys, std::int64_t rows, std::int64_t columns,
                              std::uint32_t salt, float noise, float* y) {
  for_row_items(rows, columns, [=](std::int64_t row, std::int64_t column) {
    const std::int64_t at = row * columns + column;
    y[at] =
        x[at] * jitter_factor(static_cast<std::uint32_t>(keys[row]) ^ salt, static_cast<std::uint32_t>(column), noise);
  });
}

}  // namespace

void route_forward(KernelContext& context, ConstTensorView logits, const RoutingRule& rule, ConstTensorView bias,
                   const std::int32_t* targets, TensorView scores, TensorView indices, TensorView weights) {
  const ForwardArguments all{elements<float>(logits),
                             pointer_or_null(bias),
                             targets,
                             logits.rows(),
                             static_cast<int>(scores.columns()),
                             static_cast<int>(scores.columns() - rule.null_copies),
                             static_cast<int>(indices.columns()),
                             static_cast<int>(rule.groups),
                             static_cast<int>(rule.chosen_groups),
                             rule.scoring,
                             rule.normalise,
                             rule.in_turn,
                             rule.places,
                             rule.scaling,
                             elements<float>(scores),
                             elements<std::int32_t>(indices),
                             elements<float>(weights)};
  // For up to 32, 64, ... 1024 experts, and for more.
  constexpr void (*kernels[])(ForwardArguments) = {forward_kernel<1>, forward_kernel<2>,  forward_kernel<4>,
                                                   forward_kernel<8>, forward_kernel<16>, forward_kernel<32>,
                                                   forward_kernel<0>};
  const auto kernel = std::bit_width(static_cast<unsigned>(std::max(all.experts - 1, 0)) / warp_size);
  launch(native(context.stream), blocks_for(all.tokens, warps_of_block), dim3(warps_of_block * warp_size), 0,
         kernels[std::min<std::size_t>(kernel, std::size(kernels) - 1)], all);
}

void route_backward(KernelContext& context, ConstTensorView dweights, ConstTensorView dscores, ConstTensorView scores,
                    ConstTensorView indices, const RoutingRule& rule, TensorView dlogits) {
  const std::int64_t tokens = scores.rows();
  const auto experts = static_cast<int>(scores.columns()), null_copies = static_cast<int>(rule.null_copies);
  launch(native(context.stream), blocks_for(tokens, warps_of_block), dim3(warps_of_block * warp_size), 0,
         backward_kernel, elements<float>(dweights), pointer_or_null(dscores), elements<float>(scores),
         elements<std::int32_t>(indices), tokens, experts, experts - null_copies, static_cast<int>(indices.columns()),
         rule.scoring, rule.normalise, rule.scaling, elements<float>(dlogits));
}

void jitter_rows(KernelContext& context, ConstTensorView x, ConstTensorView keys, std::uint32_t salt, float noise,
                 TensorView y) {
  const RowGrid grid = row_grid(x.rows(), x.columns());
  launch(native(context.stream), grid.blocks, grid.threads, 0, jitter_kernel, elements<float>(x),
         elements<std::int32_t>(keys), x.rows(), x.columns(), salt, noise, elements<float>(y));
}

}  // namespace weft::cuda
