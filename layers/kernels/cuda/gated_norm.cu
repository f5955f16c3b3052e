// The norm behind a state-space scan. A block computes the columns of one group of some tokens. Bytes per element of
// s bytes: forward 3 s, backward 5 s. What is read twice is in the caches the second time.
#include <cuda_runtime.h>

#include <algorithm>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/elementary.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"
#include "parallel/runtime/element_type.h"

namespace weft::cuda {
namespace {

constexpr int norm_threads = 128;
// Blocks that leave partial sums of the weight's gradient, at most.
constexpr std::int64_t most_partial_blocks = 1024;

// Of the groups of a token. blockIdx.x is the token, or the run of tokens, times the groups, plus the group.
struct GatedShape {
  std::int64_t rows, groups, width, columns;  // width: of a group; columns: of a projected token

  __device__ std::int64_t group() const { return blockIdx.x % groups; }
  __device__ std::int64_t place() const { return blockIdx.x / groups; }
};

// y silu(z) of a column.
template <typename T>
__device__ float gated_value(const T* y, const T* z, std::int64_t i) {
  const float gate = to_float(z[i]);
  return to_float(y[i]) * gate * logistic(gate);
}

template <typename T>
__global__ void __launch_bounds__(norm_threads)
    gated_forward_kernel(GatedShape shape, const T* y, const T* projected, const T* weight, float eps, T* out,
                         float* inverse_rms) {
  const std::int64_t row = shape.place(), group = shape.group(), column = group * shape.width;
  const std::int64_t at = row * shape.groups * shape.width + column;
  const T *own = y + at, *z = projected + row * shape.columns + column;
  float squares = 0.0f;
  for (std::int64_t i = threadIdx.x; i < shape.width; i += norm_threads) {
    const float value = gated_value(own, z, i);
    squares = fmaf(value, value, squares);
  }
  squares = sum_of_block(squares);
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(shape.width) + eps);
  if (threadIdx.x == 0) inverse_rms[row * shape.groups + group] = inverse;
  for (std::int64_t i = threadIdx.x; i < shape.width; i += norm_threads) {
    out[at + i] = from_float<T>(gated_value(own, z, i) * inverse * to_float(weight[column + i]));
  }
}

// Derived in the CPU's version. Each element is read before its gradient overwrites it. The block leaves its tokens'
// part of dweight in partials[run of tokens][inner].
template <typename T>
__global__ void __launch_bounds__(norm_threads)
    gated_backward_kernel(GatedShape shape, std::int64_t rows_of_block, const T* dout, const T* y, const T* projected,
                          const T* weight, const float* inverse_rms, T* dy, T* dprojected, float* partials) {
  const std::int64_t group = shape.group(), column = group * shape.width, inner = shape.groups * shape.width;
  const std::int64_t begin = shape.place() * rows_of_block;
  const std::int64_t end = begin + rows_of_block < shape.rows ? begin + rows_of_block : shape.rows;
  float* sums = partials + shape.place() * inner + column;
  for (std::int64_t i = threadIdx.x; i < shape.width; i += norm_threads) sums[i] = 0.0f;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * inner + column;
    const T *gradient = dout + at, *own = y + at, *z = projected + row * shape.columns + column;
    float dot = 0.0f;
    for (std::int64_t i = threadIdx.x; i < shape.width; i += norm_threads) {
      dot = fmaf(to_float(gradient[i]) * to_float(weight[column + i]), gated_value(own, z, i), dot);
    }
    dot = sum_of_block(dot);
    const float inverse = inverse_rms[row * shape.groups + group];
    const float along = dot * inverse * inverse / static_cast<float>(shape.width);
    for (std::int64_t i = threadIdx.x; i < shape.width; i += norm_threads) {
      const float of_out = to_float(gradient[i]), of_y = to_float(own[i]), gate = to_float(z[i]);
      const float s = logistic(gate), silu = gate * s, value = of_y * silu;
      const float dgated = inverse * (of_out * to_float(weight[column + i]) - value * along);
      sums[i] += of_out * (value * inverse);
      dy[at + i] = from_float<T>(dgated * silu);
      dprojected[row * shape.columns + column + i] = from_float<T>(dgated * of_y * (s + silu * (1.0f - s)));
    }
  }
}

GatedShape gated_shape(const StateSpaceShape& shape, std::int64_t rows) {
  return {rows, shape.groups, shape.inner() / shape.groups, shape.columns()};
}

}  // namespace

void gated_norm_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView y,
                        ConstTensorView projected, ConstTensorView weight, float eps, TensorView out,
                        TensorView inverse_rms) {
  with_element_type(y.dtype(), [&](auto element) {
    using E = decltype(element);
    using T = typename DeviceElement<E>::type;
    launch(native(context.stream), dim3(static_cast<unsigned>(y.rows() * shape.groups)), dim3(norm_threads), 0,
           gated_forward_kernel<T>, gated_shape(shape, y.rows()), elements<E>(y), elements<E>(projected),
           elements<E>(weight), eps, elements<E>(out), elements<float>(inverse_rms));
  });
}

void gated_norm_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dout, ConstTensorView y,
                         ConstTensorView projected, ConstTensorView weight, ConstTensorView inverse_rms, TensorView dy,
                         TensorView dprojected, TensorView dweight) {
  const std::int64_t rows = y.rows(), rows_of_block = (rows + most_partial_blocks - 1) / most_partial_blocks;
  const std::int64_t runs = rows == 0 ? 0 : (rows + rows_of_block - 1) / rows_of_block;
  Tensor partials = context.ledger.allocate_on(context.stream, Bucket::workspace, DType::float32, runs, shape.inner());
  float* sums = runs == 0 ? nullptr : elements<float>(partials.view());
  with_element_type(y.dtype(), [&](auto element) {
    using E = decltype(element);
    using T = typename DeviceElement<E>::type;
    launch(native(context.stream), dim3(static_cast<unsigned>(runs * shape.groups)), dim3(norm_threads), 0,
           gated_backward_kernel<T>, gated_shape(shape, rows), rows_of_block, elements<E>(dout), elements<E>(y),
           elements<E>(projected), elements<E>(weight), elements<float>(inverse_rms), elements<E>(dy),
           elements<E>(dprojected), sums);
  });
  column_sums(native(context.stream), sums, runs, shape.inner(), elements<float>(dweight));
}

}  // namespace weft::cuda
