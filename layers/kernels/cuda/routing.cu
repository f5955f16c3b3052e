// The router: scores, choice of experts, and their gradient. One warp per token; lane l has the experts l, l + 32, and
// so on, in registers for up to 1024 experts.
//
// Scores and weights have the same bits as on the CPU: the same exponential, and sums in the same order of additions. A
// tie is therefore a tie on every device.
//
// Bytes per token: forward 4 E read, 4 E + 8 K written; backward 8 E + 8 K read (4 E less without dscores), 4 E
// written.
#include "layers/kernels/cuda/exponential.cuh"
#include "layers/kernels/cuda/kernels.h"
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
__device__ int lane_of_warp() {
  return static_cast<int>(threadIdx.x) % warp_size;
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
  for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes_of_warp, sum, distance);
  return sum;
}

// The CPU's insertion into a sorted list, which defines the treatment of NaN scores. By one lane.
__device__ void insert_largest(const float* scores, int experts, int choices, std::int32_t* chosen) {
  for (int expert = 0; expert < experts; ++expert) {
    if (expert >= choices && !(scores[expert] > scores[chosen[choices - 1]])) continue;
    int at = expert < choices - 1 ? expert : choices - 1;
    for (; at > 0 && scores[expert] > scores[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = expert;
  }
}

// Writes the largest scores in descending order, ties to the lower expert, and returns their sum in that order. Scores
// are not negative, so their bits as integers have the same order. Each round takes the next one after the previous
// round's.
template <typename Scores>
__device__ float select_largest(const Scores& scores, int choices, std::int32_t* chosen, float* weights) {
  const int lane = lane_of_warp();
  float sum = smallest_sum;
  int last_bits = 0x7fffffff, last_expert = -1;
  for (int k = 0; k < choices; ++k) {
    int best_bits = -1, best_expert = 0x7fffffff;
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      const int bits = __float_as_int(scores.get(i)), expert = i * warp_size + lane;
      const bool later = bits < last_bits || (bits == last_bits && expert > last_expert);
      if (later && bits > best_bits) best_bits = bits, best_expert = expert;
    }
    last_bits = __reduce_max_sync(all_lanes_of_warp, best_bits);
    last_expert = __reduce_min_sync(all_lanes_of_warp, best_bits == last_bits ? best_expert : 0x7fffffff);
    const float score = __int_as_float(last_bits);
    sum += score;
    if (lane == 0) chosen[k] = last_expert, weights[k] = score;
  }
  return sum;
}

template <int scores_of_lane>
__global__ void forward_kernel(const float* logits, std::int64_t tokens, int experts, int choices, Scoring scoring,
                               bool normalise, float* all_scores, std::int32_t* indices, float* weights) {
  const std::int64_t token = token_of_warp();
  if (token >= tokens) return;
  const int lane = lane_of_warp();
  logits += token * experts;
  float* row = all_scores + token * experts;
  indices += token * choices;
  weights += token * choices;

  LaneScores<scores_of_lane> scores(row, experts);
  bool any_nan = false;
  if (scoring == Scoring::softmax) {
    float largest = __int_as_float(0xff800000);
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      const int expert = i * warp_size + lane;
      const float logit = expert < experts ? logits[expert] : __int_as_float(0xff800000);
      if constexpr (scores_of_lane > 0) scores.set(i, logit);
      largest = fmaxf(largest, logit);
    }
    largest = reduce_warp(largest, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      const int expert = i * warp_size + lane;
      float logit = 0.0f;
      if constexpr (scores_of_lane > 0) {
        logit = scores.get(i);
      } else if (expert < experts) {
        logit = logits[expert];
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
#pragma unroll
    for (int i = 0; i < scores.count(); ++i) {
      const int expert = i * warp_size + lane;
      const float score = expert < experts ? logistic(logits[expert]) : no_score;
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
  if (choices == 0) return;

  float sum = 1.0f;
  if (any_nan) {
    __syncwarp();
    if (lane == 0) {
      insert_largest(row, experts, choices, indices);
      sum = smallest_sum;
      for (int k = 0; k < choices; ++k) {
        weights[k] = row[indices[k]];
        sum += weights[k];
      }
    }
    sum = __shfl_sync(all_lanes_of_warp, sum, 0);
  } else {
    sum = select_largest(scores, choices, indices, weights);
  }
  if (!normalise) return;
  __syncwarp();
  for (int k = lane; k < choices; k += warp_size) weights[k] /= sum;
}

// The gradient of the scores is dscores plus, for chosen experts, the gradient through the weights (formulas in the
// CPU's routing.cpp). All experts are written as if not chosen, then the chosen ones are overwritten.
__global__ void backward_kernel(const float* dweights, const float* dscores, const float* scores,
                                const std::int32_t* indices, std::int64_t tokens, int experts, int choices,
                                Scoring scoring, bool normalise, float* dlogits) {
  const std::int64_t token = token_of_warp();
  if (token >= tokens) return;
  const int lane = lane_of_warp();
  dweights += token * choices;
  indices += token * choices;
  scores += token * experts;
  dlogits += token * experts;
  if (dscores != nullptr) dscores += token * experts;

  float scale = 1.0f, mean = 0.0f;
  if (normalise) {
    float sum = 0.0f;
    for (int k = lane; k < choices; k += warp_size) {
      const float score = scores[indices[k]];
      sum += score;
      mean += dweights[k] * score;
    }
    scale = 1.0f / (smallest_sum + sum_of_warp(sum));
    mean = sum_of_warp(mean) * scale;
  }
  // For softmax: the sum over experts of gradient times score.
  float product = 0.0f;
  if (scoring == Scoring::softmax) {
    for (int k = lane; k < choices; k += warp_size) product += (dweights[k] - mean) * scale * scores[indices[k]];
    if (dscores != nullptr) {
#pragma unroll 4
      for (int expert = lane; expert < experts; expert += warp_size) product += dscores[expert] * scores[expert];
    }
    product = sum_of_warp(product);
  }
  const auto dlogit = [=](float score, float gradient) {
    return scoring == Scoring::softmax ? score * (gradient - product) : gradient * (score * (1.0f - score));
  };
#pragma unroll 4
  for (int expert = lane; expert < experts; expert += warp_size) {
    dlogits[expert] = dlogit(scores[expert], dscores != nullptr ? dscores[expert] : 0.0f);
  }
  __syncwarp();
  for (int k = lane; k < choices; k += warp_size) {
    const int expert = indices[k];
    const float direct = dscores != nullptr ? dscores[expert] : 0.0f;
    dlogits[expert] = dlogit(scores[expert], direct + (dweights[k] - mean) * scale);
  }
}

dim3 blocks_for(std::int64_t tokens) {
  return dim3(static_cast<unsigned>((tokens + warps_of_block - 1) / warps_of_block));
}

const float* pointer_or_null(ConstTensorView tensor) {
  return tensor.empty() ? nullptr : elements<float>(tensor);
}

void route_forward(KernelContext& context, ConstTensorView logits, Scoring scoring, bool normalise, TensorView scores,
                   TensorView indices, TensorView weights) {
  const std::int64_t tokens = logits.rows();
  const auto experts = static_cast<int>(logits.columns()), choices = static_cast<int>(indices.columns());
  const auto run = [&](auto kernel) {
    launch(native(context.stream), blocks_for(tokens), dim3(warps_of_block * warp_size), 0, kernel,
           elements<float>(logits), tokens, experts, choices, scoring, normalise, elements<float>(scores),
           elements<std::int32_t>(indices), elements<float>(weights));
  };
  if (experts <= 32) {
    run(forward_kernel<1>);
  } else if (experts <= 64) {
    run(forward_kernel<2>);
  } else if (experts <= 128) {
    run(forward_kernel<4>);
  } else if (experts <= 256) {
    run(forward_kernel<8>);
  } else if (experts <= 512) {
    run(forward_kernel<16>);
  } else if (experts <= 1024) {
    run(forward_kernel<32>);
  } else {
    run(forward_kernel<0>);
  }
}

void route_backward(KernelContext& context, ConstTensorView dweights, ConstTensorView dscores, ConstTensorView scores,
                    ConstTensorView indices, Scoring scoring, bool normalise, TensorView dlogits) {
  const std::int64_t tokens = scores.rows();
  launch(native(context.stream), blocks_for(tokens), dim3(warps_of_block * warp_size), 0, backward_kernel,
         elements<float>(dweights), pointer_or_null(dscores), elements<float>(scores), elements<std::int32_t>(indices),
         tokens, static_cast<int>(scores.columns()), static_cast<int>(indices.columns()), scoring, normalise,
         elements<float>(dlogits));
}

}  // namespace

const RoutingKernels routing_kernels = {route_forward, route_backward};

}  // namespace weft::cuda
