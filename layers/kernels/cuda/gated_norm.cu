// The norm behind a state-space scan, at memory bandwidth: the columns of a token's group are read once and kept in
// registers. Bytes per element of s bytes: forward 3 s, backward 5 s and 4 for each weight and 32 tokens of 16,384. The
// rest of groups of more than 2 * 512 vectors is read twice.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/cuda/rounded_functions.cuh"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int kept_vectors = 2;  // of a thread
constexpr int norm_warps = 4, most_norm_threads = 512;
// Partial sums of the weight's gradient, at most.
constexpr std::int64_t most_partial_rows = 512;

// Of the groups of a token.
struct GatedShape {
  std::int64_t rows;
  int groups, width, columns;  // width: of a group; columns: of a projected token

  __device__ std::int64_t inner() const { return static_cast<std::int64_t>(groups) * width; }
};

// A group is computed by a warp, several warps a block, or by a block.
template <bool WarpGroup>
struct GroupThreads {
  int thread = WarpGroup ? lane_of_warp() : static_cast<int>(threadIdx.x);
  int count = WarpGroup ? warp_size : static_cast<int>(blockDim.x);
  int team = WarpGroup ? static_cast<int>(threadIdx.x) / warp_size : 0;  // of the block's
  static constexpr int teams = WarpGroup ? norm_warps : 1;

  __device__ int vector(int i) const { return thread + i * count; }
  // The thread's first column behind the vectors of N that are kept. A warp keeps all.
  template <int N>
  __device__ int rest() const {
    return WarpGroup ? std::numeric_limits<int>::max() : kept_vectors * count * N + thread;
  }
  __device__ float sum(float value) const { return WarpGroup ? sum_of_warp(value) : sum_of_block(value); }
};

// values [N] = y silu(z); the sum of their squares.
template <int N, typename T>
__device__ float gated_values(const Vector<T, N>& y, const Vector<T, N>& z, float* values) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float gate = to_float(z[i]);
    values[i] = to_float(y[i]) * gate * rounded_logistic<T>(gate);
    squares = fmaf(values[i], values[i], squares);
  }
  return squares;
}
template <int N, typename T>
__device__ void store_normed(const float* values, float inverse, const T* weight, T* out) {
  const Vector<T, N> w = load_vector<N>(weight);
  Vector<T, N> result;
#pragma unroll
  for (int i = 0; i < N; ++i) result[i] = from_float<T>(values[i] * inverse * to_float(w[i]));
  store_vector(out, result);
}

template <typename T, int N, bool WarpGroup>
__global__ void __launch_bounds__(WarpGroup ? norm_warps* warp_size : most_norm_threads)
    gated_forward_kernel(GatedShape shape, const T* y, const T* projected, const T* weight, float eps, T* out,
                         float* inverse_rms) {
  const GroupThreads<WarpGroup> threads;
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * threads.teams + threads.team;
  if (place >= shape.rows * shape.groups) return;  // a whole warp, or none
  const unsigned row = static_cast<unsigned>(place) / shape.groups, group = static_cast<unsigned>(place) % shape.groups;
  const T* z = projected + static_cast<std::int64_t>(row) * shape.columns + group * shape.width;
  y += place * shape.width;
  out += place * shape.width;
  weight += group * shape.width;
  const int vectors = shape.width / N;
  Words<T, N> ys[kept_vectors], zs[kept_vectors];
#pragma unroll
  for (int i = 0; i < kept_vectors; ++i) {
    const int vector = threads.vector(i);
    if (vector >= vectors) continue;
    ys[i] = load_words<N>(y + vector * N);
    zs[i] = load_words<N>(z + vector * N);
  }
  float values[kept_vectors][N], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kept_vectors; ++i) {
    if (threads.vector(i) >= vectors) continue;
    squares += gated_values(std::bit_cast<Vector<T, N>>(ys[i]), std::bit_cast<Vector<T, N>>(zs[i]), values[i]);
  }
  for (int in = threads.template rest<N>(); in < shape.width; in += threads.count) {
    float value;
    squares += gated_values(load_vector<1>(y + in), load_vector<1>(z + in), &value);
  }
  squares = threads.sum(squares);
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(shape.width) + eps);
  if (threads.thread == 0) inverse_rms[place] = inverse;
#pragma unroll
  for (int i = 0; i < kept_vectors; ++i) {
    const int at = threads.vector(i) * N;
    if (at < shape.width) store_normed<N>(values[i], inverse, weight + at, out + at);
  }
  for (int in = threads.template rest<N>(); in < shape.width; in += threads.count) {
    float value;
    gated_values(load_vector<1>(y + in), load_vector<1>(z + in), &value);
    store_normed<1>(&value, inverse, weight + in, out + in);
  }
}

// What a thread keeps of a vector between the two passes of the backward. Derived in the CPU's version.
template <typename T, int N>
struct GatedVector {
  Words<T, N> dout, y, z;
  float opened[N];  // the logistic function of z

  __device__ void load(const T* dout_from, const T* y_from, const T* z_from) {
    dout = load_words<N>(dout_from);
    y = load_words<N>(y_from);
    z = load_words<N>(z_from);
  }
  // Of the gradient and the gated values.
  __device__ float dot(const Vector<T, N>& weight) {
    const auto of_out = std::bit_cast<Vector<T, N>>(dout), of_y = std::bit_cast<Vector<T, N>>(y);
    const auto gates = std::bit_cast<Vector<T, N>>(z);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gate = to_float(gates[i]);
      opened[i] = rounded_logistic<T>(gate);
      sum = fmaf(to_float(of_out[i]) * to_float(weight[i]), to_float(of_y[i]) * gate * opened[i], sum);
    }
    return sum;
  }
  // dweight [N] is added to.
  __device__ void finish(const Vector<T, N>& weight, float inverse, float along, float* dweight, T* dy, T* dz) {
    const auto gradients = std::bit_cast<Vector<T, N>>(dout);
    auto ys = std::bit_cast<Vector<T, N>>(y), gates = std::bit_cast<Vector<T, N>>(z);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float of_out = to_float(gradients[i]), of_y = to_float(ys[i]), s = opened[i];
      const float silu = to_float(gates[i]) * s, value = of_y * silu;
      const float dgated = inverse * (of_out * to_float(weight[i]) - value * along);
      dweight[i] += of_out * (value * inverse);
      ys[i] = from_float<T>(dgated * silu);
      gates[i] = from_float<T>(dgated * of_y * (s + silu * (1.0f - s)));
    }
    store_vector(dy, ys);
    store_vector(dz, gates);
  }
};

// The sums of a block's warps.
template <int N>
__device__ void leave_weight_sums(const float (*dweight)[N], int width, float* partials) {
  constexpr int most = kept_vectors * warp_size * N;
  __shared__ float sums[norm_warps][most];
  const GroupThreads<true> threads;
#pragma unroll
  for (int i = 0; i < kept_vectors; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) sums[threads.team][threads.vector(i) * N + j] = dweight[i][j];
  }
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < width; column += static_cast<int>(blockDim.x)) {
    float sum = 0.0f;
#pragma unroll
    for (int team = 0; team < norm_warps; ++team) sum += sums[team][column];
    partials[column] = sum;
  }
}

// A block has a group of a run of tokens, and a thread the same columns of each. Elements are read before their
// gradient overwrites them. The run's part of dweight goes to partials[run][inner].
template <typename T, int N, bool WarpGroup>
__global__ void __launch_bounds__(WarpGroup ? norm_warps* warp_size : most_norm_threads)
    gated_backward_kernel(GatedShape shape, std::int64_t rows_of_run, const T* dout, const T* y, const T* projected,
                          const T* weight, const float* inverse_rms, T* dy, T* dprojected, float* partials) {
  const GroupThreads<WarpGroup> threads;
  const unsigned run = blockIdx.x / shape.groups, group = blockIdx.x % shape.groups;
  const int column = group * shape.width;
  const std::int64_t first = run * rows_of_run, end = min(first + rows_of_run, shape.rows);
  partials += run * shape.inner() + column;
  weight += column;
  float dweight[kept_vectors][N] = {};
  for (std::int64_t row = first + threads.team; row < end; row += threads.teams) {
    const std::int64_t at = row * shape.inner() + column, z_at = row * shape.columns + column;
    GatedVector<T, N> kept[kept_vectors];
    GatedVector<T, 1> other;
#pragma unroll
    for (int i = 0; i < kept_vectors; ++i) {
      const int in = threads.vector(i) * N;
      if (in < shape.width) kept[i].load(dout + at + in, y + at + in, projected + z_at + in);
    }
    const float inverse = inverse_rms[row * shape.groups + group];
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kept_vectors; ++i) {
      const int in = threads.vector(i) * N;
      if (in < shape.width) dot += kept[i].dot(load_vector<N>(weight + in));
    }
    for (int in = threads.template rest<N>(); in < shape.width; in += threads.count) {
      other.load(dout + at + in, y + at + in, projected + z_at + in);
      dot += other.dot(load_vector<1>(weight + in));
    }
    dot = threads.sum(dot);
    const float along = dot * inverse * inverse / static_cast<float>(shape.width);
#pragma unroll
    for (int i = 0; i < kept_vectors; ++i) {
      const int in = threads.vector(i) * N;
      if (in >= shape.width) continue;
      kept[i].finish(load_vector<N>(weight + in), inverse, along, dweight[i], dy + at + in, dprojected + z_at + in);
    }
    for (int in = threads.template rest<N>(); in < shape.width; in += threads.count) {
      const Vector<T, 1> w = load_vector<1>(weight + in);
      float sum = row == first ? 0.0f : partials[in];
      other.load(dout + at + in, y + at + in, projected + z_at + in);
      other.dot(w);
      other.finish(w, inverse, along, &sum, dy + at + in, dprojected + z_at + in);
      partials[in] = sum;
    }
  }
  if constexpr (WarpGroup) {
    leave_weight_sums<N>(dweight, shape.width, partials);
  } else {
#pragma unroll
    for (int i = 0; i < kept_vectors; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (threads.vector(i) * N < shape.width) partials[threads.vector(i) * N + j] = dweight[i][j];
      }
    }
  }
}

GatedShape gated_shape(const StateSpaceShape& shape, std::int64_t rows) {
  return {rows, static_cast<int>(shape.groups), static_cast<int>(shape.inner() / shape.groups),
          static_cast<int>(shape.columns())};
}
// Threads of a block, whose groups are computed by warps up to a width.
struct NormBlock {
  bool of_warps;
  unsigned threads;
};
NormBlock norm_block(int vectors) {
  const int wanted = (vectors + kept_vectors - 1) / kept_vectors;
  if (wanted <= warp_size) return {true, norm_warps * warp_size};
  return {false, static_cast<unsigned>(std::min((wanted + warp_size - 1) / warp_size * warp_size, most_norm_threads))};
}

}  // namespace

void gated_norm_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView y,
                        ConstTensorView projected, ConstTensorView weight, float eps, TensorView out,
                        TensorView inverse_rms) {
  const GatedShape sizes = gated_shape(shape, y.rows());
  const bool vectors =
      vectorise(y.dtype(), sizes.width, {y, weight, out}) && vectorise(y.dtype(), sizes.columns, {projected});
  with_vectors(y.dtype(), vectors, [&]<typename E, typename T, int N>() {
    const NormBlock block = norm_block(sizes.width / N);
    const unsigned blocks = blocks_for(sizes.rows * sizes.groups, block.of_warps ? norm_warps : 1);
    launch(native(context.stream), blocks, block.threads, 0,
           block.of_warps ? gated_forward_kernel<T, N, true> : gated_forward_kernel<T, N, false>, sizes, elements<E>(y),
           elements<E>(projected), elements<E>(weight), eps, elements<E>(out), elements<float>(inverse_rms));
  });
}

void gated_norm_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dout, ConstTensorView y,
                         ConstTensorView projected, ConstTensorView weight, ConstTensorView inverse_rms, TensorView dy,
                         TensorView dprojected, TensorView dweight) {
  const std::int64_t rows = y.rows(), rows_of_run = (rows + most_partial_rows - 1) / most_partial_rows;
  const std::int64_t runs = rows == 0 ? 0 : (rows + rows_of_run - 1) / rows_of_run;
  Tensor partials = context.workspace(DType::float32, runs, shape.inner());
  float* sums = runs == 0 ? nullptr : elements<float>(partials.view());
  const GatedShape sizes = gated_shape(shape, rows);
  const bool vectors = vectorise(y.dtype(), sizes.width, {dout, y, weight, dy}) &&
                       vectorise(y.dtype(), sizes.columns, {projected, dprojected});
  with_vectors(y.dtype(), vectors, [&]<typename E, typename T, int N>() {
    const NormBlock block = norm_block(sizes.width / N);
    launch(native(context.stream), static_cast<unsigned>(runs * shape.groups), block.threads, 0,
           block.of_warps ? gated_backward_kernel<T, N, true> : gated_backward_kernel<T, N, false>, sizes, rows_of_run,
           elements<E>(dout), elements<E>(y), elements<E>(projected), elements<E>(weight), elements<float>(inverse_rms),
           elements<E>(dy), elements<E>(dprojected), sums);
  });
  column_sums(native(context.stream), sums, runs, shape.inner(), elements<float>(dweight));
}

}  // namespace weft::cuda
