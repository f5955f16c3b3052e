// SwiGLU at memory bandwidth. Bytes per element of y, with elements of s bytes: forward 3 s, backward 5 s. Weights of
// tokens and their gradients add 4 bytes a row each.
#include <cuda_runtime.h>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int rows_of_block = 8;  // of the kernel with a warp for each

// Exactly 0 and 1 at the far ends: the quotient is 0 from a divisor of 2^126 on.
__device__ float logistic(float x) {
  return __fdividef(1.0f, 1.0f + expf(-x));
}

// An item is N elements of a row of y.
template <typename T, int N>
__global__ void __launch_bounds__(256, 4)
    forward_kernel(const T* gate_up, const float* weights, std::int64_t rows, std::int64_t width, T* y) {
  for_row_items(rows, width / N, [=](std::int64_t row, std::int64_t item) {
    const float weight = weights != nullptr ? weights[row] : 1.0f;
    const T* from = gate_up + row * 2 * width + item * N;
    const Vector<T, N> gates = load_vector<N>(from), ups = load_vector<N>(from + width);
    Vector<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gate = to_float(gates[i]);
      result[i] = from_float<T>(gate * logistic(gate) * to_float(ups[i]) * weight);
    }
    store_vector(y + row * width + item * N, result);
  });
}

// Item `item` of a row: the gradient times `weight`, and as the result the sum of the gradients of that weight.
// silu'(g) = s + g s (1 - s) with s = logistic(g). A thread writes only where it has read, so dgate_up may be gate_up.
template <typename T, int N>
__device__ float backward_item(const T* dy, const T* gate_up, float weight, std::int64_t row, std::int64_t item,
                               std::int64_t width, T* dgate_up) {
  const std::int64_t at = row * 2 * width + item * N;
  const Vector<T, N> gradients = load_vector<N>(dy + row * width + item * N);
  Vector<T, N> gates = load_vector<N>(gate_up + at), ups = load_vector<N>(gate_up + at + width);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float gate = to_float(gates[i]), up = to_float(ups[i]), unweighted = to_float(gradients[i]);
    const float s = logistic(gate), gradient = unweighted * weight;
    const float silu = gate * s;
    sum = fmaf(unweighted, silu * up, sum);
    gates[i] = from_float<T>(gradient * up * (s + silu * (1.0f - s)));
    ups[i] = from_float<T>(gradient * silu);
  }
  store_vector(dgate_up + at, gates);
  store_vector(dgate_up + at + width, ups);
  return sum;
}

template <typename T, int N>
__global__ void __launch_bounds__(256, 4)
    backward_kernel(const T* dy, const T* gate_up, std::int64_t rows, std::int64_t width, T* dgate_up) {
  for_row_items(rows, width / N, [=](std::int64_t row, std::int64_t item) {
    backward_item<T, N>(dy, gate_up, 1.0f, row, item, width, dgate_up);
  });
}

// With weights: a warp has a row, and sums the gradient of its weight.
template <typename T, int N>
__global__ void __launch_bounds__(256, 4)
    weighted_backward_kernel(const T* dy, const T* gate_up, const float* weights, std::int64_t rows, std::int64_t width,
                             T* dgate_up, float* dweights) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  if (row >= rows) return;
  const float weight = weights[row];
  float sum = 0.0f;
  for (std::int64_t item = lane; item < width / N; item += warp_size) {
    sum += backward_item<T, N>(dy, gate_up, weight, row, item, width, dgate_up);
  }
  sum = sum_of_warp(sum);
  if (lane == 0) dweights[row] = sum;
}

}  // namespace

void swiglu_forward(KernelContext& context, ConstTensorView gate_up, ConstTensorView weights, TensorView y) {
  const std::int64_t rows = y.rows(), width = y.columns();
  with_vectors(y.dtype(), vectorise(y.dtype(), width, {gate_up, y}), [&]<typename E, typename T, int N>() {
    const RowGrid grid = row_grid(rows, width / N);
    launch(native(context.stream), grid.blocks, grid.threads, 0, forward_kernel<T, N>, elements<E>(gate_up),
           pointer_or_null(weights), rows, width, elements<E>(y));
  });
}

void swiglu_backward(KernelContext& context, ConstTensorView dy, ConstTensorView gate_up, ConstTensorView weights,
                     TensorView dgate_up, TensorView dweights) {
  const std::int64_t rows = dy.rows(), width = dy.columns();
  const bool vectors = vectorise(dy.dtype(), width, {dy, gate_up, dgate_up});
  with_vectors(dy.dtype(), vectors, [&]<typename E, typename T, int N>() {
    if (!weights.empty()) {
      launch(native(context.stream), blocks_for(rows, rows_of_block), rows_of_block * warp_size, 0,
             weighted_backward_kernel<T, N>, elements<E>(dy), elements<E>(gate_up), elements<float>(weights), rows,
             width, elements<E>(dgate_up), elements<float>(dweights));
      return;
    }
    const RowGrid grid = row_grid(rows, width / N);
    launch(native(context.stream), grid.blocks, grid.threads, 0, backward_kernel<T, N>, elements<E>(dy),
           elements<E>(gate_up), rows, width, elements<E>(dgate_up));
  });
}

}  // namespace weft::cuda
