// Rounding to 8 bits, for many factors in each launch. Bytes per element of s bytes: 2 s read, 1 written; the second
// read comes from the cache if the factors of a call fit there.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/stream.h"
#include "parallel/runtime/cuda/vector.cuh"
#include "parallel/runtime/element_type.h"
#include "parallel/runtime/elementwise.h"

namespace weft::cuda {
namespace {

constexpr int threads_of_block = 256;
constexpr int tile = 64;             // rows and columns that a block transposes at once
constexpr int factors_at_once = 32;  // 2 KiB of parameters of a kernel
constexpr int scale_columns = float8_scale_columns;

template <typename T>
struct Factor {
  const T* source;
  std::uint8_t* rounded;
  float* scales;  // the scale, and the bits of the largest magnitude
  std::int64_t rows, columns, rounded_columns;
  bool e5m2, vectors;
};
// The factors of a launch, by blockIdx.y.
template <typename T>
struct Factors {
  Factor<T> at[factors_at_once];
};

// See scale_of in layers/kernels/cpu/float8.cpp. 448 = 1.75 * 2^8, 57,344 = 1.75 * 2^15.
__device__ float scale_of(unsigned magnitude, bool e5m2) {
  if (magnitude >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
  const unsigned exponent_of_largest = e5m2 ? 15 : 8;
  const unsigned exponent = max((magnitude + 0x1fffffu) >> 23, exponent_of_largest + 27u);
  return __uint_as_float((exponent - exponent_of_largest) << 23);
}
__device__ std::uint8_t rounded(float value, bool e5m2) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}
// The reciprocal of the factor's scale, which the first thread stores.
template <typename T>
__device__ float inverse_scale(const Factor<T>& factor) {
  const float scale = scale_of(__float_as_uint(factor.scales[1]), factor.e5m2);
  if (blockIdx.x == 0 && threadIdx.x == 0) factor.scales[0] = scale;
  return 1.0f / scale;
}

struct LargerBits {
  __device__ unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; }
};

// Bits of magnitudes are ordered like magnitudes, with NaN last; their maximum depends on no order.
template <typename T>
__global__ void __launch_bounds__(threads_of_block) largest_kernel(const Factors<T> factors) {
  const Factor<T>& factor = factors.at[blockIdx.y];
  const std::int64_t count = factor.rows * factor.columns;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * threads_of_block;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x;
  constexpr int width = Vector<T>::size;
  const std::int64_t in_vectors = factor.vectors ? count / width * width : 0;
  unsigned largest = 0;
#pragma unroll 4
  for (std::int64_t i = thread * width; i < in_vectors; i += threads * width) {
    const Vector<T> vector = load_vector(factor.source + i);
#pragma unroll
    for (int k = 0; k < width; ++k) largest = max(largest, __float_as_uint(to_float(vector[k])) & 0x7fffffffu);
  }
  for (std::int64_t i = in_vectors + thread; i < count; i += threads) {
    largest = max(largest, __float_as_uint(to_float(factor.source[i])) & 0x7fffffffu);
  }
  largest = reduce_block(largest, LargerBits(), 0u);
  if (threadIdx.x == 0 && largest != 0) atomicMax(reinterpret_cast<unsigned*>(factor.scales + 1), largest);
}

template <typename T>
__global__ void __launch_bounds__(threads_of_block) round_kernel(const Factors<T> factors) {
  const Factor<T>& factor = factors.at[blockIdx.y];
  const float inverse = inverse_scale(factor);
  const std::int64_t count = factor.rows * factor.columns;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * threads_of_block;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x;
  constexpr int width = Vector<T>::size;
  const std::int64_t in_vectors = factor.vectors ? count / width * width : 0;
#pragma unroll 4
  for (std::int64_t i = thread * width; i < in_vectors; i += threads * width) {
    const Vector<T> vector = load_vector(factor.source + i);
    Vector<std::uint8_t, width> bytes;
#pragma unroll
    for (int k = 0; k < width; ++k) bytes[k] = rounded(to_float(vector[k]) * inverse, factor.e5m2);
    store_vector(factor.rounded + i, bytes);
  }
  for (std::int64_t i = in_vectors + thread; i < count; i += threads) {
    factor.rounded[i] = rounded(to_float(factor.source[i]) * inverse, factor.e5m2);
  }
}

// A block reads tiles of the source by rows and writes them by columns, four bytes a thread at a time: the columns of
// `rounded` are a multiple of 16.
template <typename T>
__global__ void __launch_bounds__(threads_of_block) round_transposed_kernel(const Factors<T> factors) {
  // Four bytes more than a tile is wide: threads that write neighbouring columns use different banks.
  __shared__ __align__(4) std::uint8_t bytes[tile][tile + 4];
  const Factor<T>& factor = factors.at[blockIdx.y];
  const float inverse = inverse_scale(factor);
  const std::int64_t across = (factor.columns + tile - 1) / tile, down = (factor.rounded_columns + tile - 1) / tile;
  for (std::int64_t i = blockIdx.x; i < across * down; i += gridDim.x) {
    const std::int64_t top = i / across * tile, left = i % across * tile;
    const std::int64_t column = left + threadIdx.x % tile;
    for (int row = threadIdx.x / tile; row < tile; row += threads_of_block / tile) {
      const bool inside = top + row < factor.rows && column < factor.columns;
      const float value = inside ? to_float(factor.source[(top + row) * factor.columns + column]) * inverse : 0.0f;
      bytes[threadIdx.x % tile][row] = rounded(value, factor.e5m2);
    }
    __syncthreads();
    const int four = static_cast<int>(threadIdx.x) % (tile / 4) * 4;
    for (int row = threadIdx.x / (tile / 4); row < tile; row += threads_of_block / (tile / 4)) {
      if (left + row >= factor.columns || top + four >= factor.rounded_columns) continue;
      *reinterpret_cast<std::uint32_t*>(factor.rounded + (left + row) * factor.rounded_columns + top + four) =
          *reinterpret_cast<const std::uint32_t*>(&bytes[row][four]);
    }
    __syncthreads();
  }
}

// Launches the kernel for all factors, with a block for each `items_of_block` of the largest.
template <typename T>
void launch_for(cudaStream_t stream, const std::vector<Factor<T>>& factors, std::int64_t items_of_block,
                void (*kernel)(Factors<T>)) {
  constexpr std::int64_t most_blocks = 4096;
  for (std::size_t first = 0; first < factors.size(); first += factors_at_once) {
    const std::size_t count = std::min<std::size_t>(factors_at_once, factors.size() - first);
    Factors<T> some{};
    std::int64_t most = 1;
    for (std::size_t i = 0; i < count; ++i) {
      some.at[i] = factors[first + i];
      most = std::max(most, some.at[i].columns * std::max(some.at[i].rows, some.at[i].rounded_columns));
    }
    const auto blocks = static_cast<unsigned>(std::min((most + items_of_block - 1) / items_of_block, most_blocks));
    launch(stream, dim3(blocks, static_cast<unsigned>(count)), threads_of_block, 0, kernel, some);
  }
}

void round_factors(KernelContext& context, std::span<const Float8Factor> factors, TensorView scales) {
  fill(context.stream, scales, 0.0f);
  with_element_type(factors.front().source.dtype(), [&](auto element) {
    using E = decltype(element);
    using T = typename DeviceElement<E>::type;
    std::vector<Factor<T>> all, straight, turned;
    float* scale = elements<float>(scales);
    for (const auto& [source, transpose, rounded] : factors) {
      const bool vectors =
          vectorises<E>(source.data(), source.columns()) && reinterpret_cast<std::uintptr_t>(rounded.data()) % 16 == 0;
      all.push_back({elements<E>(source), reinterpret_cast<std::uint8_t*>(rounded.data()), scale, source.rows(),
                     source.columns(), transpose == Transpose::yes ? rounded.columns() : 0,
                     rounded.dtype() == DType::float8_e5m2, vectors});
      (transpose == Transpose::yes ? turned : straight).push_back(all.back());
      scale += scale_columns;
    }
    const cudaStream_t stream = native(context.stream);
    constexpr std::int64_t of_block = 4 * threads_of_block * Vector<T>::size;
    launch_for(stream, all, of_block, largest_kernel<T>);
    launch_for(stream, straight, of_block, round_kernel<T>);
    launch_for(stream, turned, std::int64_t{tile} * tile, round_transposed_kernel<T>);
  });
}

}  // namespace

const Float8Kernels float8_kernels = {round_factors};

}  // namespace weft::cuda
