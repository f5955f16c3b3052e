// Functions of the table of element-wise kernels that have their own files.
#pragma once

#include "parallel/runtime/elementwise.h"

namespace weft::cuda {

// sums.cu
void square_sum(Stream& stream, ConstTensorView source, TensorView sum);
void count_nonfinite(Stream& stream, ConstTensorView source, TensorView count);
// reduce_elements.cu; at most 64 inputs and 64 outputs.
void reduce_elements(Stream& stream, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                     std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs);

}  // namespace weft::cuda
