#include "layers/kernels/cuda/kernels.h"

#include "parallel/runtime/cuda/launch.cuh"

namespace weft::cuda {
namespace {

constexpr int tile_columns = 32, tile_parts = 32;

// A block sums 32 columns. Thread (x, y) sums parts y, y + 32, ... of column x, then the 32 sums of a column are folded
// in halves.
__global__ void __launch_bounds__(tile_columns* tile_parts)
    column_sums_kernel(const float* partials, std::int64_t parts, std::int64_t columns, float* sums) {
  __shared__ float tile[tile_parts][tile_columns];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * tile_columns + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t part = threadIdx.y; part < parts; part += tile_parts) sum += partials[part * columns + column];
  }
  tile[threadIdx.y][threadIdx.x] = sum;
  for (unsigned width = tile_parts / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.y < width) tile[threadIdx.y][threadIdx.x] += tile[threadIdx.y + width][threadIdx.x];
  }
  if (threadIdx.y == 0 && column < columns) sums[column] = tile[0][threadIdx.x];
}

}  // namespace

void column_sums(cudaStream_t stream, const float* partials, std::int64_t parts, std::int64_t columns, float* sums) {
  const auto blocks = static_cast<unsigned>((columns + tile_columns - 1) / tile_columns);
  launch(stream, blocks, dim3(tile_columns, tile_parts, 1), 0, column_sums_kernel, partials, parts, columns, sums);
}

}  // namespace weft::cuda
