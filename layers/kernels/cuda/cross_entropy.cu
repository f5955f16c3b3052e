// Cross-entropy at memory bandwidth, one block per token. Bytes per logit: 4 for the maximum and the sums, and 4 + s
// for the gradient, whose elements have s bytes.
#include <cuda_runtime.h>

#include <algorithm>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int most_threads = 512;
constexpr int width = Vector<float>::size;
// Vectors that a thread loads before it uses the first.
constexpr int vectors_in_flight = 4;

unsigned threads_for(std::int64_t columns) {
  return columns >= most_threads * width * 2 ? most_threads : 128;
}

// Calls of_vector(column, four logits) and of_one(column, logit) for the running thread's share of a row of any
// alignment. A call may overwrite the logits that it was given.
template <typename OfVector, typename OfOne>
__device__ void walk_row(const float* row, std::int64_t columns, OfVector of_vector, OfOne of_one) {
  const std::int64_t past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) / sizeof(float) % width);
  const std::int64_t before = (width - past) % width, head = before < columns ? before : columns;
  const std::int64_t vectors = (columns - head) / width;
  for (std::int64_t first = threadIdx.x; first < vectors; first += vectors_in_flight * blockDim.x) {
    Vector<float> loaded[vectors_in_flight];
#pragma unroll
    for (int i = 0; i < vectors_in_flight; ++i) {
      const std::int64_t vector = first + i * static_cast<std::int64_t>(blockDim.x);
      if (vector < vectors) loaded[i] = load_vector(row + head + vector * width);
    }
#pragma unroll
    for (int i = 0; i < vectors_in_flight; ++i) {
      const std::int64_t vector = first + i * static_cast<std::int64_t>(blockDim.x);
      if (vector < vectors) of_vector(head + vector * width, loaded[i]);
    }
  }
  for (std::int64_t i = threadIdx.x; i < columns - vectors * width; i += blockDim.x) {
    const std::int64_t column = i < head ? i : i + vectors * width;
    of_one(column, row[column]);
  }
}

// The column of a target in this shard, or -1 if another shard has it.
__device__ std::int64_t local_column(std::int32_t target, std::int64_t begin, std::int64_t columns) {
  const std::int64_t column = target - begin;
  return column >= 0 && column < columns ? column : -1;
}

// The maximum of the logits seen so far and the sum of exp(logit - maximum) over them, in one pass (Milakov and
// Gimelshein 2018). A larger maximum shrinks the sum. Vocabularies are long: four exponentials are added in float32,
// everything else in double.
struct RunningSum {
  float maximum = -INFINITY;
  double sum = 0;

  __device__ void raise(float to) {
    if (!(to > maximum)) return;
    sum *= shrink(maximum, to);
    maximum = to;
  }
  // exp(from - to), 0 from -infinity. A sum that holds a NaN keeps it.
  static __device__ float shrink(float from, float to) { return from == to ? 1.0f : expf(from - to); }
};
// The value that exponents are relative to.
__device__ float reference_of(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}

__global__ void __launch_bounds__(most_threads, 2)
    sums_kernel(const float* logits, const std::int32_t* targets, std::int64_t begin, std::int64_t columns,
                float* maximum, float* sums) {
  const std::int64_t token = blockIdx.x;
  const float* row = logits + token * columns;
  RunningSum running;
  walk_row(
      row, columns,
      [&](std::int64_t, const Vector<float>& x) {
        running.raise(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
        const float from = reference_of(running.maximum);
        running.sum += (expf(x[0] - from) + expf(x[1] - from)) + (expf(x[2] - from) + expf(x[3] - from));
      },
      [&](std::int64_t, float x) {
        running.raise(x);
        running.sum += expf(x - reference_of(running.maximum));
      });
  // As on the CPU, a NaN shows in the sums instead.
  const float row_maximum = reduce_block(running.maximum, LargerNumber(), -INFINITY);
  const double sum = sum_of_block(running.sum * RunningSum::shrink(running.maximum, row_maximum));
  if (threadIdx.x != 0) return;
  const std::int64_t target = local_column(targets[token], begin, columns);
  maximum[token] = row_maximum;
  sums[2 * token] = static_cast<float>(sum);
  sums[2 * token + 1] = target < 0 ? 0.0f : row[target] - reference_of(row_maximum);
}

__global__ void __launch_bounds__(256)
    shift_sums_kernel(const float* of_shard, const float* maximum, const std::int32_t* targets, std::int64_t begin,
                      std::int64_t columns, std::int64_t tokens, float* sums) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token >= tokens) return;
  const float by = of_shard[token] - maximum[token];
  if (by == 0.0f) return;
  sums[2 * token] *= expf(by);
  if (local_column(targets[token], begin, columns) >= 0) sums[2 * token + 1] += by;
}

template <typename T>
__global__ void __launch_bounds__(most_threads, 2)
    gradient_kernel(const float* logits, const float* maximum, const float* sums, const std::int32_t* targets,
                    std::int64_t begin, std::int64_t columns, float factor, T* dlogits, double* losses) {
  const std::int64_t token = blockIdx.x;
  const float* row = logits + token * columns;
  T* gradient = dlogits + token * columns;
  const float row_maximum = maximum[token], sum = sums[2 * token];
  const float scale = factor / sum;
  const bool counts = targets[token] >= 0;
  const std::int64_t target = local_column(targets[token], begin, columns);
  if (losses != nullptr && threadIdx.x == 0) {
    losses[token] = counts ? log(static_cast<double>(sum)) - sums[2 * token + 1] : 0.0;
  }
  const auto gradient_of = [=](std::int64_t column, float x) {
    if (!counts) return from_float<T>(0.0f);
    const float exponential = expf(x - row_maximum);
    // Rounded once.
    return from_float<T>(column == target ? factor * (exponential / sum - 1.0f) : scale * exponential);
  };
  walk_row(
      row, columns,
      [=](std::int64_t column, const Vector<float>& x) {
        Vector<T, width> result;
#pragma unroll
        for (int i = 0; i < width; ++i) result[i] = gradient_of(column + i, x[i]);
        T* to = gradient + column;
        if (reinterpret_cast<std::uintptr_t>(to) % sizeof result == 0) {
          store_vector(to, result);
        } else {
#pragma unroll
          for (int i = 0; i < width; ++i) to[i] = result[i];
        }
      },
      [=](std::int64_t column, float x) { gradient[column] = gradient_of(column, x); });
}

// One block. The order of additions depends on the number of tokens only.
__global__ void __launch_bounds__(1024) add_losses_kernel(const double* losses, std::int64_t tokens, double* loss) {
  double sum = 0;
  for (std::int64_t token = threadIdx.x; token < tokens; token += 1024) sum += losses[token];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *loss += sum;
}

}  // namespace

void vocabulary_sums(KernelContext& context, ConstTensorView logits, ConstTensorView targets, std::int64_t begin,
                     TensorView maximum, TensorView sums) {
  if (logits.rows() == 0) return;
  launch(native(context.stream), static_cast<unsigned>(logits.rows()), threads_for(logits.columns()), 0, sums_kernel,
         elements<float>(logits), elements<std::int32_t>(targets), begin, logits.columns(), elements<float>(maximum),
         elements<float>(sums));
}

void shift_vocabulary_sums(KernelContext& context, ConstTensorView of_shard, ConstTensorView maximum,
                           ConstTensorView targets, Range entries, TensorView sums) {
  const std::int64_t tokens = maximum.size();
  if (tokens == 0) return;
  launch(native(context.stream), blocks_for(tokens, 256), 256, 0, shift_sums_kernel, elements<float>(of_shard),
         elements<float>(maximum), elements<std::int32_t>(targets), entries.begin, entries.count, tokens,
         elements<float>(sums));
}

void cross_entropy_gradient(KernelContext& context, ConstTensorView logits, ConstTensorView maximum,
                            ConstTensorView sums, ConstTensorView targets, std::int64_t begin, float factor,
                            TensorView dlogits, TensorView loss) {
  const std::int64_t tokens = logits.rows();
  if (tokens == 0) return;
  Tensor losses;
  double* of_tokens = nullptr;
  if (!loss.empty()) {
    losses = context.workspace(DType::float64, tokens, 1);
    of_tokens = elements<double>(losses.view());
  }
  with_elements(dlogits.dtype(), [&]<typename E, typename T>() {
    launch(native(context.stream), static_cast<unsigned>(tokens), threads_for(logits.columns()), 0, gradient_kernel<T>,
           elements<float>(logits), elements<float>(maximum), elements<float>(sums), elements<std::int32_t>(targets),
           begin, logits.columns(), factor, elements<E>(dlogits), of_tokens);
  });
  if (of_tokens != nullptr) {
    launch(native(context.stream), 1, 1024, 0, add_losses_kernel, of_tokens, tokens, elements<double>(loss));
  }
}

}  // namespace weft::cuda
