// RMSNorm at memory bandwidth: a row is read once and kept in registers between its statistics and its output. Bytes
// per element of s bytes: forward 2 s, backward 4 s (dy, x, the residual and dx). The weight is read from the caches.
#include <cuda_runtime.h>

#include <algorithm>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

// Vectors of a row that a thread keeps in registers. The rest of wider rows (more than 4 * 512 vectors) is read twice.
constexpr int kept = 4;
// More threads would leave too few registers for the kept vectors.
constexpr int most_threads = 512;

// A row is computed by the threads of one warp, several rows per block, or by those of one block.
struct RowThreads {
  int of_row, rows_of_block;
};
RowThreads row_threads(std::int64_t vectors) {
  const std::int64_t wanted = (vectors + kept - 1) / kept;
  if (wanted <= warp_size) return {warp_size, 4};
  return {static_cast<int>(std::min<std::int64_t>((wanted + warp_size - 1) / warp_size * warp_size, most_threads)), 1};
}

// The running thread's index among the threads of its row.
struct Place {
  std::int64_t row;
  int thread, threads;
};
template <bool WarpRow>
__device__ Place place() {
  if constexpr (!WarpRow) {
    return {static_cast<std::int64_t>(blockIdx.x), static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  } else {
    return {static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / warp_size) + threadIdx.x / warp_size,
            static_cast<int>(threadIdx.x % warp_size), warp_size};
  }
}
template <bool WarpRow>
__device__ float sum_of_row(float value) {
  return WarpRow ? sum_of_warp(value) : sum_of_block(value);
}

template <int N, typename T>
__device__ float square_sum(const Vector<T, N>& x) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += to_float(x[i]) * to_float(x[i]);
  return sum;
}
template <int N, typename T>
__device__ void normalise(const Vector<T, N>& x, float inverse, const T* weight, T* y) {
  const Vector<T, N> w = load_vector<N>(weight);
  Vector<T, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) result[i] = from_float<T>(to_float(x[i]) * inverse * to_float(w[i]));
  store_vector(y, result);
}

template <typename T, int N, bool WarpRow>
__global__ void __launch_bounds__(WarpRow ? 128 : most_threads, WarpRow ? 4 : 1)
    forward_kernel(const T* x, const T* weight, float eps, std::int64_t rows, std::int64_t hidden, T* y,
                   float* inverse_rms) {
  const Place at = place<WarpRow>();
  if (at.row >= rows) return;  // a whole warp, or none
  x += at.row * hidden;
  y += at.row * hidden;
  const std::int64_t vectors = hidden / N;
  Vector<T, N> row[kept];
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    const std::int64_t vector = at.thread + static_cast<std::int64_t>(i) * at.threads;
    if (vector < vectors) row[i] = load_vector<N>(x + vector * N);
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    if (at.thread + static_cast<std::int64_t>(i) * at.threads < vectors) squares += square_sum(row[i]);
  }
  const std::int64_t wide = at.thread + static_cast<std::int64_t>(kept) * at.threads;
  for (std::int64_t vector = wide; vector < vectors; vector += at.threads) {
    squares += square_sum(load_vector<N>(x + vector * N));
  }
  squares = sum_of_row<WarpRow>(squares);
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(hidden) + eps);
  if (at.thread == 0) inverse_rms[at.row] = inverse;
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    const std::int64_t vector = at.thread + static_cast<std::int64_t>(i) * at.threads;
    if (vector < vectors) normalise(row[i], inverse, weight + vector * N, y + vector * N);
  }
  for (std::int64_t vector = wide; vector < vectors; vector += at.threads) {
    normalise(load_vector<N>(x + vector * N), inverse, weight + vector * N, y + vector * N);
  }
}

template <int N, typename T>
__device__ float dot(const Vector<T, N>& dy, const Vector<T, N>& x, const T* weight) {
  const Vector<T, N> w = load_vector<N>(weight);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += to_float(dy[i]) * to_float(w[i]) * to_float(x[i]);
  return sum;
}
template <int N, typename T>
__device__ void add_gradient(const Vector<T, N>& dy, const Vector<T, N>& x, const T* weight, float inverse,
                             float along_x, const T* residual, T* dx) {
  const Vector<T, N> w = load_vector<N>(weight);
  Vector<T, N> result{};
  if (residual != nullptr) result = load_vector<N>(residual);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float gradient = to_float(dy[i]) * to_float(w[i]);
    result[i] = from_float<T>(to_float(result[i]) + inverse * (gradient - to_float(x[i]) * along_x));
  }
  store_vector(dx, result);
}

template <int N, typename T>
__device__ void add_weight_gradient(const Vector<T, N>& dy, const Vector<T, N>& x, float inverse, float* sums) {
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] += to_float(dy[i]) * (to_float(x[i]) * inverse);
}

// With kept gradients and sums, fewer threads still have enough registers.
constexpr int most_wide_threads = 384;

// dx_i = residual_i + r (g_i - x_i mean(g x) r^2) with g = w dy; derived in the CPU's version. A block computes
// `rows_of_block` rows, one after the other, and leaves its part of dweight in partials[blockIdx.x][hidden] (null: not
// asked for). A thread has the same columns of every row: it sums the first `Kept` vectors in registers, the columns of
// wider rows in place.
template <typename T, int N, int Kept>
__global__ void __launch_bounds__(Kept == 1 ? most_threads : most_wide_threads, Kept == 1 ? 2 : 1)
    backward_kernel(const T* dy, const T* x, const T* weight, const float* inverse_rms, std::int64_t rows,
                    std::int64_t hidden, std::int64_t rows_of_block, const T* residual, T* dx, float* partials) {
  const std::int64_t vectors = hidden / N, threads = blockDim.x, thread = threadIdx.x;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * rows_of_block;
  const std::int64_t end = begin + rows_of_block < rows ? begin + rows_of_block : rows;
  if (partials != nullptr) partials += static_cast<std::int64_t>(blockIdx.x) * hidden;
  float dweight[Kept][N] = {};
  for (std::int64_t at = begin; at < end; ++at) {
    const T *gradient_row = dy + at * hidden, *x_row = x + at * hidden;
    T* result_row = dx + at * hidden;
    const auto onto = [=](std::int64_t column) {
      return residual == nullptr ? nullptr : residual + at * hidden + column;
    };
    Vector<T, N> row[Kept], gradient[Kept];
#pragma unroll
    for (int i = 0; i < Kept; ++i) {
      const std::int64_t vector = thread + i * threads;
      if (vector < vectors) {
        row[i] = load_vector<N>(x_row + vector * N);
        gradient[i] = load_vector<N>(gradient_row + vector * N);
      }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Kept; ++i) {
      const std::int64_t vector = thread + i * threads;
      if (vector < vectors) sum += dot(gradient[i], row[i], weight + vector * N);
    }
    const std::int64_t wide = thread + Kept * threads;
    for (std::int64_t vector = wide; vector < vectors; vector += threads) {
      sum += dot(load_vector<N>(gradient_row + vector * N), load_vector<N>(x_row + vector * N), weight + vector * N);
    }
    sum = sum_of_block(sum);
    const float inverse = inverse_rms[at];
    const float along_x = sum * inverse * inverse / static_cast<float>(hidden);
#pragma unroll
    for (int i = 0; i < Kept; ++i) {
      const std::int64_t column = (thread + i * threads) * N;
      if (column >= hidden) continue;
      add_gradient(gradient[i], row[i], weight + column, inverse, along_x, onto(column), result_row + column);
      add_weight_gradient(gradient[i], row[i], inverse, dweight[i]);
    }
    for (std::int64_t column = wide * N; column < hidden; column += threads * N) {
      const Vector<T, N> of_y = load_vector<N>(gradient_row + column), of_x = load_vector<N>(x_row + column);
      add_gradient(of_y, of_x, weight + column, inverse, along_x, onto(column), result_row + column);
      if (partials == nullptr) continue;
      float sums[N] = {};
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] = at == begin ? 0.0f : partials[column + i];
      add_weight_gradient(of_y, of_x, inverse, sums);
#pragma unroll
      for (int i = 0; i < N; ++i) partials[column + i] = sums[i];
    }
  }
  if (partials == nullptr) return;
#pragma unroll
  for (int i = 0; i < Kept; ++i) {
    const std::int64_t column = (thread + i * threads) * N;
    if (column >= hidden) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) partials[column + j] = dweight[i][j];
  }
}

}  // namespace

void rms_norm_forward(KernelContext& context, ConstTensorView x, ConstTensorView weight, float eps, TensorView y,
                      TensorView inverse_rms) {
  const std::int64_t rows = x.rows(), hidden = x.columns();
  if (rows == 0) return;
  with_vectors(x.dtype(), vectorise(x.dtype(), hidden, {x, weight, y}), [&]<typename E, typename T, int N>() {
    const RowThreads threads = row_threads(hidden / N);
    const auto kernel = threads.rows_of_block > 1 ? forward_kernel<T, N, true> : forward_kernel<T, N, false>;
    launch(native(context.stream), blocks_for(rows, threads.rows_of_block), threads.of_row * threads.rows_of_block, 0,
           kernel, elements<E>(x), elements<E>(weight), eps, rows, hidden, elements<E>(y),
           elements<float>(inverse_rms));
  });
}

void rms_norm_backward(KernelContext& context, ConstTensorView dy, ConstTensorView x, ConstTensorView weight,
                       ConstTensorView inverse_rms, ConstTensorView residual, TensorView dx, TensorView dweight) {
  const std::int64_t rows = x.rows(), hidden = x.columns();
  const cudaStream_t stream = native(context.stream);
  float* weight_sums = dweight.empty() ? nullptr : elements<float>(dweight);
  if (rows == 0) {
    if (weight_sums != nullptr) column_sums(stream, nullptr, 0, hidden, weight_sums);
    return;
  }
  const bool in_vectors = vectorise(x.dtype(), hidden, {dy, x, weight, dx, residual});
  with_vectors(x.dtype(), in_vectors, [&]<typename E, typename T, int N>() {
    const std::int64_t vectors = hidden / N;
    const bool narrow = vectors <= most_threads;
    const std::int64_t wanted =
        narrow ? vectors : std::min<std::int64_t>((vectors + kept - 1) / kept, most_wide_threads);
    const std::int64_t threads = (wanted + warp_size - 1) / warp_size * warp_size;
    // Blocks that are on a large GPU at once: rows, and with them the order of sums, depend on the shape only.
    constexpr std::int64_t threads_at_once = 1 << 17;
    const std::int64_t rows_of_block = (rows * threads + threads_at_once - 1) / threads_at_once;
    const std::int64_t blocks = (rows + rows_of_block - 1) / rows_of_block;
    Tensor partials;
    if (weight_sums != nullptr) partials = context.workspace(DType::float32, blocks, hidden);
    float* partial_sums = weight_sums == nullptr ? nullptr : elements<float>(partials.view());
    launch(stream, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0,
           narrow ? backward_kernel<T, N, 1> : backward_kernel<T, N, kept>, elements<E>(dy), elements<E>(x),
           elements<E>(weight), elements<float>(inverse_rms), rows, hidden, rows_of_block,
           residual.empty() ? nullptr : elements<E>(residual), elements<E>(dx), partial_sums);
    if (weight_sums != nullptr) column_sums(stream, partial_sums, blocks, hidden, weight_sums);
  });
}

}  // namespace weft::cuda
