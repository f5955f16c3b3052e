// The second half of sums over many rows that must not depend on timing: blocks leave partial sums, these are added in
// their order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace weft::cuda {

// sums[column] += the sum of partials[0 .. parts)[column], for every column. partials [parts, columns]
// and sums [columns] float32. Moves 4 bytes a partial sum.
void add_column_sums(cudaStream_t stream, const float* partials, std::int64_t parts, std::int64_t columns, float* sums);

}  // namespace weft::cuda
