// Auxiliary losses of the router. The order of every sum depends on sizes only: blocks write partial sums to workspace,
// and a second kernel adds them.
//
// Bytes per token: statistics read 4 E + 4 K, and write and read 8 E / 64 of partial sums. Sigmoids read scores twice,
// the second time from a cache. auxiliary_loss_backward reads and writes 4 E (reads 4 E more for sigmoids). z_loss
// reads 8 E and writes 4 E.
#include <algorithm>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/elementary.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int threads_of_block = 256;
constexpr int warps_of_block = threads_of_block / warp_size;

__device__ int warp_of_block() {
  return static_cast<int>(threadIdx.x) / warp_size;
}

// The inverse of a row's sum, by one warp; if all scores underflow, it is finite because of `smallest_sum`.
__device__ float inverse_sum(const float* scores, int experts) {
  float sum = 0.0f;
#pragma unroll 4
  for (int expert = lane_of_warp(); expert < experts; expert += warp_size) sum += scores[expert];
  return 1.0f / (sum_of_warp(sum) + smallest_sum);
}

__device__ bool counts_in(const std::int32_t* targets, std::int64_t token) {
  return targets == nullptr || targets[token] != padding_target;
}

// Statistics of `tokens_of_chunk` consecutive tokens of one sequence.
constexpr int tokens_of_chunk = 64;
// Experts that a block has counters for; blocks with different y take further experts.
constexpr int experts_of_block = 2048;

// Block (c, y) writes the sums of chunk c for experts [y, y + 1) * experts_of_block. Chunk c is chunk c % chunks of
// sequence c / chunks. Tokens outside the slice are not counted.
__global__ void chunk_statistics_kernel(const float* scores, const std::int32_t* indices, std::int64_t tokens,
                                        int experts, int choices, bool normalise, TokenSlice slice, int chunks,
                                        std::int32_t* chunk_counts, float* chunk_sums) {
  __shared__ int counters[experts_of_block];
  __shared__ float weights[tokens_of_chunk];  // of the scores of a token: the inverse of their sum, 1, or 0
  const int first_expert = static_cast<int>(blockIdx.y) * experts_of_block;
  const int end_expert = min(experts, first_expert + experts_of_block);
  const std::int64_t sequence = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  std::int64_t begin = sequence * slice.sequence_tokens + chunk * tokens_of_chunk;
  std::int64_t end = min(begin + tokens_of_chunk, (sequence + 1) * slice.sequence_tokens);
  begin = max(begin - slice.first_token, std::int64_t{0});
  end = min(end - slice.first_token, tokens);
  const int count = static_cast<int>(max(end - begin, std::int64_t{0}));
  scores += begin * experts;
  indices += begin * choices;
  const std::int32_t* targets = slice.targets == nullptr ? nullptr : slice.targets + begin;

  for (int expert = first_expert + static_cast<int>(threadIdx.x); expert < end_expert; expert += threads_of_block) {
    counters[expert - first_expert] = 0;
  }
  for (int token = warp_of_block(); token < count; token += warps_of_block) {
    const float inverse = normalise ? inverse_sum(scores + static_cast<std::int64_t>(token) * experts, experts) : 1.0f;
    if (lane_of_warp() == 0) weights[token] = counts_in(targets, token) ? inverse : 0.0f;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * choices; i += threads_of_block) {
    const int expert = indices[i];
    const bool here = expert >= first_expert && expert < end_expert;
    if (here && counts_in(targets, i / choices)) atomicAdd(&counters[expert - first_expert], 1);
  }
  __syncthreads();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * experts;
  for (int expert = first_expert + static_cast<int>(threadIdx.x); expert < end_expert; expert += threads_of_block) {
    float sum = 0.0f;
#pragma unroll 8
    for (int token = 0; token < count; ++token) {
      sum += scores[static_cast<std::int64_t>(token) * experts + expert] * weights[token];
    }
    chunk_sums[row + expert] = sum;
    chunk_counts[row + expert] = counters[expert - first_expert];
  }
}

// A block adds the chunks of 32 experts of one sequence: warp w adds those with c % warps_of_block == w, then the
// warps' sums are added in order.
__global__ void add_chunks_kernel(const std::int32_t* chunk_counts, const float* chunk_sums, int experts, int chunks,
                                  int blocks_of_sequence, float* counts, float* score_sums) {
  __shared__ float sums[warps_of_block][warp_size];
  __shared__ std::int32_t totals[warps_of_block][warp_size];
  const std::int64_t sequence = blockIdx.x / blocks_of_sequence;
  const int expert = static_cast<int>(blockIdx.x % blocks_of_sequence) * warp_size + lane_of_warp();
  float sum = 0.0f;
  std::int32_t total = 0;
  if (expert < experts) {
#pragma unroll 4
    for (int chunk = warp_of_block(); chunk < chunks; chunk += warps_of_block) {
      const std::int64_t at = (sequence * chunks + chunk) * experts + expert;
      sum += chunk_sums[at];
      total += chunk_counts[at];
    }
  }
  sums[warp_of_block()][lane_of_warp()] = sum;
  totals[warp_of_block()][lane_of_warp()] = total;
  __syncthreads();
  if (warp_of_block() != 0 || expert >= experts) return;
  for (int warp = 1; warp < warps_of_block; ++warp) {
    sum += sums[warp][lane_of_warp()];
    total += totals[warp][lane_of_warp()];
  }
  score_sums[sequence * experts + expert] = sum;
  counts[sequence * experts + expert] = static_cast<float>(total);
}

// One block. Sums of whole numbers are exact in any order.
__global__ void scale_counts_kernel(const double* choices, int experts, double total, float* counts) {
  double sum = 0.0;
#pragma unroll 4
  for (int expert = static_cast<int>(threadIdx.x); expert < experts; expert += static_cast<int>(blockDim.x)) {
    sum += choices[expert];
  }
  sum = sum_of_block(sum);
  const double factor = sum == 0.0 ? 0.0 : total / sum;
#pragma unroll 4
  for (int expert = static_cast<int>(threadIdx.x); expert < experts; expert += static_cast<int>(blockDim.x)) {
    counts[expert] = static_cast<float>(factor * choices[expert]);
  }
}

// One block. *loss += factor * the sum over sequences of E / (K S^2) * sum of counts * score_sums.
__global__ void add_losses_kernel(const float* counts, const float* score_sums, std::int64_t sequences, int experts,
                                  int choices, std::int64_t sequence_length, double factor, double* loss) {
  double all = 0.0;
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence, counts += experts, score_sums += experts) {
    double sum = 0.0, chosen = 0.0;
#pragma unroll 4
    for (int expert = static_cast<int>(threadIdx.x); expert < experts; expert += static_cast<int>(blockDim.x)) {
      sum += static_cast<double>(counts[expert]) * static_cast<double>(score_sums[expert]);
      chosen += static_cast<double>(counts[expert]);
    }
    sum = sum_of_block(sum);
    if (sequence_length == 0) chosen = sum_of_block(chosen);
    const double tokens = sequence_length == 0 ? chosen / choices : static_cast<double>(sequence_length);
    if (tokens != 0.0) all += experts / (choices * tokens * tokens) * sum;
  }
  if (threadIdx.x == 0) *loss += factor * all;
}

// One block. *loss += factor * sum of values.
__global__ void add_values_kernel(const double* values, int size, double factor, double* loss) {
  double sum = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) sum += values[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *loss += factor * sum;
}

// One warp per token. The formula is derived at the CPU's add_score_gradient.
__global__ void auxiliary_backward_kernel(const float* scores, const float* counts, std::int64_t tokens, int experts,
                                          int choices, bool normalise, TokenSlice slice, float factor, float* dscores) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * warps_of_block + warp_of_block();
  if (token >= tokens || !counts_in(slice.targets, token)) return;
  scores += token * experts;
  dscores += token * experts;
  counts += (slice.first_token + token) / slice.sequence_tokens * experts;
  auto length = static_cast<double>(slice.sequence_length);
  if (slice.sequence_length == 0) {
    // Whole numbers, whose sum is exact below 2^24.
    float chosen = 0.0f;
#pragma unroll 4
    for (int expert = lane_of_warp(); expert < experts; expert += warp_size) chosen += counts[expert];
    length = static_cast<double>(sum_of_warp(chosen)) / choices;
  }
  factor = static_cast<float>(static_cast<double>(factor) * (experts / (choices * length * length)));
  float inverse = 1.0f, mean = 0.0f;
  if (normalise) {
    float sum = 0.0f, product = 0.0f;
#pragma unroll 4
    for (int expert = lane_of_warp(); expert < experts; expert += warp_size) {
      sum += scores[expert];
      product += counts[expert] * scores[expert];
    }
    inverse = 1.0f / (sum_of_warp(sum) + smallest_sum);
    mean = inverse * sum_of_warp(product);
  }
#pragma unroll 4
  for (int expert = lane_of_warp(); expert < experts; expert += warp_size) {
    dscores[expert] += factor * inverse * (counts[expert] - mean);
  }
}

// A warp computes every n-th token, with n warps in the grid. Each block writes its sum of squared log-sum-exps.
__global__ void z_loss_kernel(const float* all_logits, const std::int32_t* targets, std::int64_t tokens, int experts,
                              float copies, float factor, float* all_dlogits, double* block_sums) {
  double sum_of_squares = 0.0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * warps_of_block;
  for (std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * warps_of_block + warp_of_block(); token < tokens;
       token += step) {
    if (!counts_in(targets, token)) continue;
    const float* logits = all_logits + token * experts;
    float* dlogits = all_dlogits + token * experts;
    float largest = __int_as_float(0xff800000);
#pragma unroll 4
    for (int expert = lane_of_warp(); expert < experts; expert += warp_size) largest = fmaxf(largest, logits[expert]);
    largest = reduce_warp(largest, LargerNumber());
    const auto term = [&](int expert) {
      return (expert + 1 == experts ? copies : 1.0f) * exponential(logits[expert] - largest);
    };
    float sum = 0.0f;
#pragma unroll 4
    for (int expert = lane_of_warp(); expert < experts; expert += warp_size) sum += term(expert);
    sum = sum_of_warp(sum);
    const double log_sum_exp = static_cast<double>(largest) + log(static_cast<double>(sum));
    sum_of_squares += log_sum_exp * log_sum_exp;
    const float scale = 2.0f * factor * static_cast<float>(log_sum_exp) / sum;
#pragma unroll 4
    for (int expert = lane_of_warp(); expert < experts; expert += warp_size) {
      dlogits[expert] += scale * term(expert);
    }
  }
  sum_of_squares = sum_of_block(lane_of_warp() == 0 ? sum_of_squares : 0.0);
  if (threadIdx.x == 0) block_sums[blockIdx.x] = sum_of_squares;
}

}  // namespace

void expert_statistics(KernelContext& context, ConstTensorView scores, ConstTensorView indices, Scoring scoring,
                       TokenSlice slice, TensorView counts, TensorView score_sums) {
  if (counts.empty()) return;
  const std::int64_t sequences = counts.rows(), experts = counts.columns();
  const auto chunks = static_cast<int>((slice.sequence_tokens + tokens_of_chunk - 1) / tokens_of_chunk);
  Tensor chunk_counts = context.workspace(DType::int32, sequences * chunks, experts);
  Tensor chunk_sums = context.workspace(DType::float32, sequences * chunks, experts);
  const cudaStream_t stream = native(context.stream);
  launch(stream, dim3(static_cast<unsigned>(sequences * chunks), blocks_for(experts, experts_of_block)),
         dim3(threads_of_block), 0, chunk_statistics_kernel, elements<float>(scores), elements<std::int32_t>(indices),
         scores.rows(), static_cast<int>(experts), static_cast<int>(indices.columns()), scoring != Scoring::softmax,
         slice, chunks, elements<std::int32_t>(chunk_counts.view()), elements<float>(chunk_sums.view()));
  const unsigned blocks_of_sequence = blocks_for(experts, warp_size);
  launch(stream, dim3(static_cast<unsigned>(sequences) * blocks_of_sequence), dim3(threads_of_block), 0,
         add_chunks_kernel, elements<std::int32_t>(chunk_counts.view()), elements<float>(chunk_sums.view()),
         static_cast<int>(experts), chunks, static_cast<int>(blocks_of_sequence), elements<float>(counts),
         elements<float>(score_sums));
}

void scale_counts(KernelContext& context, ConstTensorView choices, double total, TensorView counts) {
  launch(native(context.stream), dim3(1), dim3(1024), 0, scale_counts_kernel, elements<double>(choices),
         static_cast<int>(counts.size()), total, elements<float>(counts));
}

void auxiliary_loss(KernelContext& context, ConstTensorView counts, ConstTensorView score_sums, std::int64_t choices,
                    std::int64_t sequence_length, double factor, TensorView loss) {
  launch(native(context.stream), dim3(1), dim3(1024), 0, add_losses_kernel, elements<float>(counts),
         elements<float>(score_sums), counts.rows(), static_cast<int>(counts.columns()), static_cast<int>(choices),
         sequence_length, factor, elements<double>(loss));
}

void auxiliary_loss_backward(KernelContext& context, ConstTensorView scores, ConstTensorView counts, Scoring scoring,
                             TokenSlice slice, std::int64_t choices, float factor, TensorView dscores) {
  const std::int64_t tokens = scores.rows(), experts = scores.columns();
  launch(native(context.stream), dim3(blocks_for(tokens, warps_of_block)), dim3(threads_of_block), 0,
         auxiliary_backward_kernel, elements<float>(scores), elements<float>(counts), tokens, static_cast<int>(experts),
         static_cast<int>(choices), scoring != Scoring::softmax, slice, factor, elements<float>(dscores));
}

void z_loss(KernelContext& context, ConstTensorView logits, std::int64_t copies, const std::int32_t* targets,
            double factor, float gradient_factor, TensorView dlogits, TensorView loss) {
  constexpr unsigned most_blocks = 1024;  // enough for every multiprocessor, and few sums to add
  const unsigned blocks = std::min(most_blocks, blocks_for(logits.rows(), warps_of_block));
  Tensor block_sums = context.workspace(DType::float64, blocks, 1);
  const cudaStream_t stream = native(context.stream);
  launch(stream, dim3(blocks), dim3(threads_of_block), 0, z_loss_kernel, elements<float>(logits), targets,
         logits.rows(), static_cast<int>(logits.columns()), static_cast<float>(copies), gradient_factor,
         elements<float>(dlogits), elements<double>(block_sums.view()));
  launch(stream, dim3(1), dim3(1024), 0, add_values_kernel, elements<double>(block_sums.view()),
         static_cast<int>(blocks), factor, elements<double>(loss));
}

}  // namespace weft::cuda
