// Rounding to 8 bits with a scale for each row of 128 elements along the inner size, or each square of 128 x 128. A
// block of threads has a tile of the source in registers, so that each element is read once: s bytes read, 1 written.
#include <cstdint>

#include "layers/kernels/cuda/float8.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"

namespace weft::cuda {
namespace {

constexpr int tile = static_cast<int>(scaled_block_size);
constexpr int each = float8_run;  // a thread has 8 x 8 elements
constexpr int across = tile / each, threads_of_block = across * across;
constexpr int warps = threads_of_block / warp_size;
static_assert(2 * across == warp_size, "half a warp reads a row of the tile");

template <typename T>
__device__ std::int64_t tiles_down(const Float8Operand<T>& factor) {
  return ((factor.turned ? factor.rounded_columns : factor.rounded_rows) + tile - 1) / tile;
}

// The scale of a block of elements; stored by the thread that `stores`.
__device__ float inverse_scale(unsigned magnitude, bool e5m2, bool stores, float* to) {
  const float scale = float8_scale(magnitude, e5m2);
  if (stores) *to = scale;
  return 1.0f / scale;
}

// A thread's elements of a tile: 8 rows from y and 8 columns from x.
struct ThreadPart {
  int thread, x, y;
  std::int64_t tile_row, tile_column;
};

// Columns of a tile scaled each by itself: the reciprocals of their scales, of `largest` among a thread's rows.
template <typename T>
__device__ void scale_columns(const Float8Operand<T>& factor, const ThreadPart& at, const unsigned (&largest)[each],
                              float (&by_column)[each]) {
  __shared__ unsigned of_warps[warps][tile];  // the largest magnitude of each column
  __shared__ float of_columns[tile];          // the reciprocal of its scale
#pragma unroll
  for (int k = 0; k < each; ++k) {
    const unsigned other = __shfl_xor_sync(all_lanes_of_warp, largest[k], across);
    of_warps[at.thread / warp_size][at.x + k] = max(largest[k], other);
  }
  __syncthreads();
  if (at.thread < tile) {
    unsigned of_column = 0;
    for (int warp = 0; warp < warps; ++warp) of_column = max(of_column, of_warps[warp][at.thread]);
    const std::int64_t column = at.tile_column * tile + at.thread;
    of_columns[at.thread] = inverse_scale(of_column, factor.e5m2, column < factor.columns,
                                          factor.scales + at.tile_row * factor.scale_columns + column);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < each; ++k) by_column[k] = of_columns[at.x + k];
}

// The tile, whose columns become rows of the rounded matrix.
template <typename T>
__device__ void store_turned(const Float8Operand<T>& factor, const ThreadPart& at, const float (&values)[each][each],
                             const float (&by_row)[each], const float (&by_column)[each]) {
  __shared__ __align__(16) std::uint8_t bytes[tile][tile + 16];  // transposed; 16 more, so that columns use other banks
#pragma unroll
  for (int k = 0; k < each; ++k) {
    float column[each];
#pragma unroll
    for (int r = 0; r < each; ++r) column[r] = values[r][k] * by_row[r];
    store_shared_vector(reinterpret_cast<std::uint16_t*>(&bytes[at.x + k][at.y]),
                        float8_rounded(column, by_column[k], factor.e5m2));
  }
  __syncthreads();
  constexpr int run = 16, runs = tile / run;
  for (int chunk = at.thread; chunk < tile * runs; chunk += threads_of_block) {
    const int column = chunk / runs, row = chunk % runs * run;
    const std::int64_t to_row = at.tile_column * tile + column, to_column = at.tile_row * tile + row;
    if (to_row >= factor.rounded_rows || to_column >= factor.rounded_columns) continue;
    store_vector(factor.rounded + to_row * factor.rounded_columns + to_column,
                 load_vector<run>(static_cast<const std::uint8_t*>(&bytes[column][row])));
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(threads_of_block) round_tiles_kernel(const Float8Operands<T> factors) {
  const Float8Operand<T>& factor = factors.at[blockIdx.y];
  const int thread = static_cast<int>(threadIdx.x), x = thread % across * each, y = thread / across * each;
  const std::int64_t tiles_across = (factor.columns + tile - 1) / tile;
  for (std::int64_t i = blockIdx.x; i < tiles_across * tiles_down(factor); i += gridDim.x) {
    const ThreadPart at{thread, x, y, i / tiles_across, i % tiles_across};
    const std::int64_t top = at.tile_row * tile + y, left = at.tile_column * tile + x;
    float values[each][each], by_row[each], by_column[each];
    unsigned largest_of_row[each] = {}, largest_of_column[each] = {};
    load_rows(factor, top, left, values);
#pragma unroll
    for (int r = 0; r < each; ++r) {
      by_row[r] = by_column[r] = 1.0f;
#pragma unroll
      for (int k = 0; k < each; ++k) {
        const unsigned bits = magnitude_bits(values[r][k]);
        largest_of_row[r] = max(largest_of_row[r], bits);
        largest_of_column[k] = max(largest_of_column[k], bits);
      }
    }
    // One of the two factors stays 1.
    if (factor.each == ScaledBlock::square) {
      unsigned largest = 0;
#pragma unroll
      for (int r = 0; r < each; ++r) largest = max(largest, largest_of_row[r]);
      largest = reduce_block(largest, LargerOf(), 0u);
      const std::int64_t to = factor.turned ? at.tile_column * factor.scale_columns + at.tile_row
                                            : at.tile_row * factor.scale_columns + at.tile_column;
      const float inverse = inverse_scale(largest, factor.e5m2, thread == 0, factor.scales + to);
#pragma unroll
      for (int r = 0; r < each; ++r) by_row[r] = inverse;
    } else if (!factor.turned) {
#pragma unroll
      for (int r = 0; r < each; ++r) {
        const unsigned largest = reduce_lanes(largest_of_row[r], across, LargerOf());
        by_row[r] = inverse_scale(largest, factor.e5m2, x == 0 && top + r < factor.rounded_rows,
                                  factor.scales + at.tile_column * factor.scale_columns + top + r);
      }
    } else {
      scale_columns(factor, at, largest_of_column, by_column);
    }
    if (factor.turned) {
      store_turned(factor, at, values, by_row, by_column);
      continue;
    }
#pragma unroll
    for (int r = 0; r < each; ++r) {
      if (top + r < factor.rounded_rows && left < factor.columns) {
        store_float8(factor.rounded + (top + r) * factor.rounded_columns + left,
                     float8_rounded(values[r], by_row[r], factor.e5m2));
      }
    }
  }
}

}  // namespace

void round_in_blocks(KernelContext& context, std::span<const Float8Factor> factors) {
  with_elements(factors.front().source.dtype(), [&]<typename E, typename T>() {
    std::vector<Float8Operand<T>> operands;
    for (const Float8Factor& factor : factors) operands.push_back(float8_operand<E>(factor));
    const auto tiles = [](const Float8Operand<T>& factor) {
      const auto blocks = [](std::int64_t size) { return (size + tile - 1) / tile; };
      return blocks(factor.rounded_rows) * blocks(factor.rounded_columns);
    };
    launch_for(native(context.stream), operands, threads_of_block, tiles, round_tiles_kernel<T>);
  });
}

}  // namespace weft::cuda
