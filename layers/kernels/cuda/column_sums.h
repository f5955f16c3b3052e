// Second half of deterministic sums over many rows: blocks leave partial sums, and these are added in a fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace weft::cuda {

// sums[column] = the sum of partials[0 .. parts)[column], for every column; zero of no parts. partials [parts, columns]
// and sums [columns] float32. Reads 4 bytes per partial sum.
void column_sums(cudaStream_t stream, const float* partials, std::int64_t parts, std::int64_t columns, float* sums);

}  // namespace weft::cuda
