// A grid over the rows of a matrix, with rows divided into items (vectors, words). No thread divides to find its place.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace weft::cuda {

struct RowGrid {
  dim3 blocks, threads;
};

// Blocks have about 256 threads. Several blocks share a wide row; several narrow rows share a block.
inline RowGrid row_grid(std::int64_t rows, std::int64_t items) {
  constexpr std::int64_t block_threads = 256;
  if (rows <= 0 || items <= 0) return {dim3(0, 1, 1), dim3(1, 1, 1)};
  const std::int64_t parts = (items + block_threads - 1) / block_threads;
  std::int64_t across = (items + parts - 1) / parts;
  if (across > 32) across = (across + 31) / 32 * 32;
  const std::int64_t down = std::max<std::int64_t>(block_threads / across, 1);
  const std::int64_t most_rows = (std::int64_t{1} << 31) - 1, most_parts = 65535;
  return {dim3(static_cast<unsigned>(std::min((rows + down - 1) / down, most_rows)),
               static_cast<unsigned>(std::min(parts, most_parts)), 1),
          dim3(static_cast<unsigned>(across), static_cast<unsigned>(down), 1)};
}

// Calls body(row, item) for the running thread's share of rows x items.
template <typename Body>
__device__ void for_row_items(std::int64_t rows, std::int64_t items, Body body) {
  const std::int64_t row_step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  const std::int64_t item_step = static_cast<std::int64_t>(gridDim.y) * blockDim.x;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += row_step) {
    for (std::int64_t item = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; item < items;
         item += item_step) {
      body(row, item);
    }
  }
}

}  // namespace weft::cuda
