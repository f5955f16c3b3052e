// Rounding to 8 bits with one scale for a factor. Bytes per element of s bytes: 2 s read, 1 written. The second read
// comes from the cache if the factors of a call fit there.
#include "layers/kernels/cuda/float8.cuh"
#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"

namespace weft::cuda {
namespace {

constexpr int threads_of_block = 256;
// The tile that a block transposes at once. A thread has four rows of eight columns.
constexpr int tile_rows = 128, tile_columns = 64;
constexpr int thread_rows = 4, thread_columns = float8_run;
// Blocks per multiprocessor, which bounds the registers of a thread, and tiles of a block.
constexpr int transposing_blocks = 4, tiles_of_block = 4;
static_assert(tile_rows / thread_rows * (tile_columns / thread_columns) == threads_of_block);

// The second of a factor's four floats holds the bits of its largest magnitude.
template <typename T>
__device__ unsigned* largest_of(const Float8Operand<T>& factor) {
  return reinterpret_cast<unsigned*>(factor.scales + 1);
}

// The reciprocal of the factor's scale, which the first thread stores.
template <typename T>
__device__ float inverse_scale(const Float8Operand<T>& factor) {
  const float scale = float8_scale(*largest_of(factor), factor.e5m2);
  if (blockIdx.x == 0 && threadIdx.x == 0) factor.scales[0] = scale;
  return 1.0f / scale;
}

template <typename T>
__global__ void clear_kernel(const Float8Operands<T> factors) {
  *largest_of(factors.at[blockIdx.y]) = 0;
}

template <typename T>
__global__ void __launch_bounds__(threads_of_block) largest_kernel(const Float8Operands<T> factors) {
  const Float8Operand<T>& factor = factors.at[blockIdx.y];
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
    for (int k = 0; k < width; ++k) largest = max(largest, magnitude_bits(to_float(vector[k])));
  }
  for (std::int64_t i = in_vectors + thread; i < count; i += threads) {
    largest = max(largest, magnitude_bits(to_float(factor.source[i])));
  }
  largest = reduce_block(largest, LargerOf(), 0u);
  if (threadIdx.x == 0 && largest != 0) atomicMax(largest_of(factor), largest);
}

template <typename T>
__global__ void __launch_bounds__(threads_of_block) round_kernel(const Float8Operands<T> factors) {
  const Float8Operand<T>& factor = factors.at[blockIdx.y];
  const float inverse = inverse_scale(factor);
  const std::int64_t count = factor.rows * factor.columns;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * threads_of_block;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x;
  constexpr int width = Vector<T>::size;
  const std::int64_t in_vectors = factor.vectors ? count / width * width : 0;
#pragma unroll 4
  for (std::int64_t i = thread * width; i < in_vectors; i += threads * width) {
    const Vector<T> vector = load_vector(factor.source + i);
    float values[width];
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = to_float(vector[k]);
    store_float8(factor.rounded + i, float8_rounded(values, inverse, factor.e5m2));
  }
  for (std::int64_t i = in_vectors + thread; i < count; i += threads) {
    factor.rounded[i] = float8_rounded(to_float(factor.source[i]) * inverse, factor.e5m2);
  }
}

// A block reads tiles of the source by rows and writes them by columns. The next tile is read while one is written. A
// thread moves 16 bytes at a time: the columns of `rounded` are a multiple of 16.
template <typename T>
__global__ void __launch_bounds__(threads_of_block, transposing_blocks)
    round_transposed_kernel(const Float8Operands<T> factors) {
  // Words of four rows, by column. One unused word follows each column, and four lie in front of the second half of the
  // columns. Then the threads of a warp use different banks to write and to read.
  constexpr int words = tile_rows / thread_rows, half = tile_columns / 2;
  __shared__ std::uint32_t bytes[tile_columns * (words + 1) + thread_rows];
  const auto place = [](int column, int word) { return column * (words + 1) + column / half * thread_rows + word; };
  const Float8Operand<T>& factor = factors.at[blockIdx.y];
  const float inverse = inverse_scale(factor);
  const std::int64_t across = (factor.columns + tile_columns - 1) / tile_columns;
  const std::int64_t down = (factor.rounded_columns + tile_rows - 1) / tile_rows;
  const int thread = static_cast<int>(threadIdx.x), groups = tile_columns / thread_columns;
  const int word = thread / groups, column = thread % groups * thread_columns;
  LoadedRows<T, thread_rows> rows;
  const auto load = [&](std::int64_t i) {
    if (i >= across * down) return;
    rows.load(factor, i / across * tile_rows + word * thread_rows, i % across * tile_columns + column);
  };
  load(blockIdx.x);
  for (std::int64_t i = blockIdx.x; i < across * down; i += gridDim.x) {
    const std::int64_t top = i / across * tile_rows, left = i % across * tile_columns;
#pragma unroll
    for (int k = 0; k < thread_columns; ++k) {
      const float four[thread_rows] = {rows.at(0, k), rows.at(1, k), rows.at(2, k), rows.at(3, k)};
      const auto pairs = float8_rounded(four, inverse, factor.e5m2);
      bytes[place(column + k, word)] = std::uint32_t{pairs[0]} | std::uint32_t{pairs[1]} << 16;
    }
    __syncthreads();
    load(i + gridDim.x);
    constexpr int run = 4, runs = words / run;  // 16 bytes
    for (int chunk = thread; chunk < tile_columns * runs; chunk += threads_of_block) {
      const int from = chunk / runs, first = chunk % runs * run;
      Vector<std::uint32_t, run> sixteen;
#pragma unroll
      for (int w = 0; w < run; ++w) sixteen[w] = bytes[place(from, first + w)];
      const std::int64_t to_column = top + first * thread_rows;
      if (left + from < factor.columns && to_column < factor.rounded_columns) {
        store_vector(
            reinterpret_cast<std::uint32_t*>(factor.rounded + (left + from) * factor.rounded_columns + to_column),
            sixteen);
      }
    }
    __syncthreads();
  }
}

void round_whole(KernelContext& context, std::span<const Float8Factor> factors) {
  with_elements(factors.front().source.dtype(), [&]<typename E, typename T>() {
    std::vector<Float8Operand<T>> all, straight, turned;
    for (const Float8Factor& factor : factors) {
      all.push_back(float8_operand<E>(factor));
      (factor.transpose == Transpose::yes ? turned : straight).push_back(all.back());
    }
    const cudaStream_t stream = native(context.stream);
    const auto one = [](const Float8Operand<T>&) { return 1; };
    const auto vectors = [](const Float8Operand<T>& factor) {
      return factor.rows * factor.columns / (4 * threads_of_block * Vector<T>::size) + 1;
    };
    const auto tiles = [](const Float8Operand<T>& factor) {
      return factor.columns * factor.rounded_columns / (tiles_of_block * tile_rows * tile_columns) + 1;
    };
    launch_for(stream, all, 1, one, clear_kernel<T>);
    launch_for(stream, all, threads_of_block, vectors, largest_kernel<T>);
    launch_for(stream, straight, threads_of_block, vectors, round_kernel<T>);
    launch_for(stream, turned, threads_of_block, tiles, round_transposed_kernel<T>);
  });
}

}  // namespace

void round_to_float8(KernelContext& context, std::span<const Float8Factor> factors) {
  if (factors.empty()) return;
  if (factors.front().each == ScaledBlock::all) return round_whole(context, factors);
  round_in_blocks(context, factors);
}

}  // namespace weft::cuda
