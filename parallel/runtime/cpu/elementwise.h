// Element-wise work of the CPU. The calling thread completes the work before the call returns.
#pragma once

#include "parallel/runtime/elementwise.h"

namespace weft::cpu {

// For kernels of the CPU, which need no stream.
void cast(ConstTensorView source, TensorView destination);
void add(ConstTensorView source, TensorView destination);
void fill(TensorView destination, float value);

// Sizes and dtypes have been checked (parallel/runtime/elementwise.cpp). 16-bit elements are combined in float32 and
// rounded once; int32 wraps around; a maximum with a NaN is NaN. All inputs of a block are read before any output is
// written.
void reduce_elements(Stream& stream, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                     std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs);

extern const ElementwiseKernels elementwise_kernels;

}  // namespace weft::cpu
