// RMSNorm at memory bandwidth: a row is read once and kept in registers between its statistics and its output. Bytes
// per element of s bytes: forward 2 s, backward_input 4 s (dy, x, the residual and dx), backward_weight 2 s. The weight
// is read from the caches.
#include <cuda_runtime.h>

#include <algorithm>

#include "layers/kernels/cuda/column_sums.h"
#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/stream.h"
#include "parallel/runtime/cuda/vector.cuh"
#include "parallel/runtime/element_type.h"

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

// dx_i = residual_i + r (g_i - x_i mean(g x) r^2) with g = w dy; derived in the CPU's version.
template <typename T, int N, bool WarpRow>
__global__ void __launch_bounds__(WarpRow ? 128 : most_threads, WarpRow ? 4 : 1)
    backward_input_kernel(const T* dy, const T* x, const T* weight, const float* inverse_rms, std::int64_t rows,
                          std::int64_t hidden, const T* residual, T* dx) {
  const Place at = place<WarpRow>();
  if (at.row >= rows) return;
  dy += at.row * hidden;
  x += at.row * hidden;
  if (residual != nullptr) residual += at.row * hidden;
  dx += at.row * hidden;
  const auto onto = [=](std::int64_t column) { return residual == nullptr ? nullptr : residual + column; };
  const std::int64_t vectors = hidden / N;
  Vector<T, N> row[kept], gradient[kept];
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    const std::int64_t vector = at.thread + static_cast<std::int64_t>(i) * at.threads;
    if (vector < vectors) {
      row[i] = load_vector<N>(x + vector * N);
      gradient[i] = load_vector<N>(dy + vector * N);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    const std::int64_t vector = at.thread + static_cast<std::int64_t>(i) * at.threads;
    if (vector < vectors) sum += dot(gradient[i], row[i], weight + vector * N);
  }
  const std::int64_t wide = at.thread + static_cast<std::int64_t>(kept) * at.threads;
  for (std::int64_t vector = wide; vector < vectors; vector += at.threads) {
    sum += dot(load_vector<N>(dy + vector * N), load_vector<N>(x + vector * N), weight + vector * N);
  }
  sum = sum_of_row<WarpRow>(sum);
  const float inverse = inverse_rms[at.row];
  const float along_x = sum * inverse * inverse / static_cast<float>(hidden);
#pragma unroll
  for (int i = 0; i < kept; ++i) {
    const std::int64_t vector = at.thread + static_cast<std::int64_t>(i) * at.threads;
    if (vector >= vectors) continue;
    add_gradient(gradient[i], row[i], weight + vector * N, inverse, along_x, onto(vector * N), dx + vector * N);
  }
  for (std::int64_t vector = wide; vector < vectors; vector += at.threads) {
    add_gradient(load_vector<N>(dy + vector * N), load_vector<N>(x + vector * N), weight + vector * N, inverse, along_x,
                 onto(vector * N), dx + vector * N);
  }
}

// A block sums a chunk of rows in a tile of columns: thread (x, y) sums the N columns of vector x over rows y, y + 8,
// ...
constexpr int tile_vectors = 32, tile_rows = 8;

template <typename T, int N>
__global__ void __launch_bounds__(tile_vectors* tile_rows, 2)
    weight_partials_kernel(const T* dy, const T* x, const float* inverse_rms, std::int64_t rows, std::int64_t hidden,
                           std::int64_t chunk_rows, float* partials) {
  __shared__ float tile[tile_rows][tile_vectors * N];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * tile_vectors + threadIdx.x) * N;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * chunk_rows;
  const std::int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sums[N] = {};
  if (column < hidden) {
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.y; row < end; row += tile_rows) {
      const Vector<T, N> gradient = load_vector<N>(dy + row * hidden + column);
      const Vector<T, N> input = load_vector<N>(x + row * hidden + column);
      const float inverse = inverse_rms[row];
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += to_float(gradient[i]) * (to_float(input[i]) * inverse);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) tile[threadIdx.y][i * tile_vectors + threadIdx.x] = sums[i];
  __syncthreads();
  if (threadIdx.y != 0 || column >= hidden) return;
  float* result = partials + static_cast<std::int64_t>(blockIdx.x) * hidden + column;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < tile_rows; ++part) sum += tile[part][i * tile_vectors + threadIdx.x];
    result[i] = sum;
  }
}

template <typename T, int N>
void queue_forward(cudaStream_t stream, const T* x, const T* weight, float eps, std::int64_t rows, std::int64_t hidden,
                   T* y, float* inverse_rms) {
  const RowThreads threads = row_threads(hidden / N);
  const auto blocks = static_cast<unsigned>((rows + threads.rows_of_block - 1) / threads.rows_of_block);
  const auto kernel = threads.rows_of_block > 1 ? forward_kernel<T, N, true> : forward_kernel<T, N, false>;
  launch(stream, blocks, static_cast<unsigned>(threads.of_row * threads.rows_of_block), 0, kernel, x, weight, eps, rows,
         hidden, y, inverse_rms);
}

template <typename T, int N>
void queue_backward_input(cudaStream_t stream, const T* dy, const T* x, const T* weight, const float* inverse_rms,
                          std::int64_t rows, std::int64_t hidden, const T* residual, T* dx) {
  const RowThreads threads = row_threads(hidden / N);
  const auto blocks = static_cast<unsigned>((rows + threads.rows_of_block - 1) / threads.rows_of_block);
  const auto kernel =
      threads.rows_of_block > 1 ? backward_input_kernel<T, N, true> : backward_input_kernel<T, N, false>;
  launch(stream, blocks, static_cast<unsigned>(threads.of_row * threads.rows_of_block), 0, kernel, dy, x, weight,
         inverse_rms, rows, hidden, residual, dx);
}

template <typename T, int N>
void queue_backward_weight(KernelContext& context, const T* dy, const T* x, const float* inverse_rms, std::int64_t rows,
                           std::int64_t hidden, float* dweight) {
  // Chunks depend on the shape only. They fill a large GPU several times and have at least 64 rows.
  constexpr std::int64_t enough_blocks = 1056, least_rows = 64;
  const std::int64_t tiles = (hidden / N + tile_vectors - 1) / tile_vectors;
  const std::int64_t wanted = std::max<std::int64_t>(enough_blocks / tiles, 1);
  const std::int64_t chunk_rows = std::max((rows + wanted - 1) / wanted, least_rows);
  const std::int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  Tensor partials = context.ledger.allocate_on(context.stream, Bucket::workspace, DType::float32, chunks, hidden);
  float* partial_sums = elements<float>(partials.view());
  launch(native(context.stream), dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(tiles), 1),
         dim3(tile_vectors, tile_rows, 1), 0, weight_partials_kernel<T, N>, dy, x, inverse_rms, rows, hidden,
         chunk_rows, partial_sums);
  add_column_sums(native(context.stream), partial_sums, chunks, hidden, dweight);
}

void rms_norm_forward(KernelContext& context, ConstTensorView x, ConstTensorView weight, float eps, TensorView y,
                      TensorView inverse_rms) {
  if (x.rows() == 0) return;
  with_element_type(x.dtype(), [&](auto element) {
    using E = decltype(element);
    using T = typename DeviceElement<E>::type;
    const bool vectors = vectorises<E>(x.data(), x.columns()) && vectorises<E>(weight.data(), x.columns()) &&
                         vectorises<E>(y.data(), x.columns());
    const auto queue = vectors ? queue_forward<T, Vector<T>::size> : queue_forward<T, 1>;
    queue(native(context.stream), elements<E>(x), elements<E>(weight), eps, x.rows(), x.columns(), elements<E>(y),
          elements<float>(inverse_rms));
  });
}

void rms_norm_backward_input(KernelContext& context, ConstTensorView dy, ConstTensorView x, ConstTensorView weight,
                             ConstTensorView inverse_rms, ConstTensorView residual, TensorView dx) {
  if (x.rows() == 0) return;
  with_element_type(x.dtype(), [&](auto element) {
    using E = decltype(element);
    using T = typename DeviceElement<E>::type;
    const bool vectors = vectorises<E>(dy.data(), x.columns()) && vectorises<E>(x.data(), x.columns()) &&
                         vectorises<E>(weight.data(), x.columns()) && vectorises<E>(dx.data(), x.columns()) &&
                         vectorises<E>(residual.data(), x.columns());
    const auto queue = vectors ? queue_backward_input<T, Vector<T>::size> : queue_backward_input<T, 1>;
    queue(native(context.stream), elements<E>(dy), elements<E>(x), elements<E>(weight), elements<float>(inverse_rms),
          x.rows(), x.columns(), residual.empty() ? nullptr : elements<E>(residual), elements<E>(dx));
  });
}

void rms_norm_backward_weight(KernelContext& context, ConstTensorView dy, ConstTensorView x,
                              ConstTensorView inverse_rms, TensorView dweight) {
  if (x.empty()) return;
  with_element_type(x.dtype(), [&](auto element) {
    using E = decltype(element);
    using T = typename DeviceElement<E>::type;
    const bool vectors = vectorises<E>(dy.data(), x.columns()) && vectorises<E>(x.data(), x.columns());
    const auto queue = vectors ? queue_backward_weight<T, Vector<T>::size> : queue_backward_weight<T, 1>;
    queue(context, elements<E>(dy), elements<E>(x), elements<float>(inverse_rms), x.rows(), x.columns(),
          elements<float>(dweight));
  });
}

}  // namespace

const RmsNormKernels rms_norm_kernels = {rms_norm_forward, rms_norm_backward_input, rms_norm_backward_weight};

}  // namespace weft::cuda
