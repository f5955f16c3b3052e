// Element-wise work outside the layers: conversion, accumulation, sums of squares, reductions over ranks. The functions
// queue the work on a stream, and the stream's device does it. Sizes must agree. Dtypes are float32, bfloat16 or
// float16 unless stated otherwise.
#pragma once

#include <span>

#include "parallel/runtime/tensor.h"

namespace weft {

class Stream;

// destination = source, converted to the destination's dtype and rounded once to nearest even. Equal dtypes of any kind
// are copied.
void cast(Stream& stream, ConstTensorView source, TensorView destination);
// destination += source, computed in float32. The dtypes are equal, or the destination is float32.
void add(Stream& stream, ConstTensorView source, TensorView destination);
// destination = factor source + destination_factor destination, in float32 and rounded once; equal dtypes,
// float32 or bfloat16.
void combine(Stream& stream, float factor, ConstTensorView source, float destination_factor, TensorView destination);
// destination /= sqrt(square_sum), or zero if square_sum is zero. Each element is multiplied by the root's reciprocal
// in double and rounded once. float32; square_sum [1, 1] float64 stays in device memory.
void divide_by_root(Stream& stream, ConstTensorView square_sum, TensorView destination);
// Any dtype; for integers the value is truncated.
void fill(Stream& stream, TensorView destination, float value);
// sum [1, 1] float64 += the sum of squares of a float32 tensor, in double. The order of additions depends on the size
// alone.
void square_sum(Stream& stream, ConstTensorView source, TensorView sum);
// count [1, 1] int32 += the number of NaN and infinite elements of a float32 tensor.
void count_nonfinite(Stream& stream, ConstTensorView source, TensorView count);
// Copies `columns` columns of every row, beginning at the given columns. Dtypes, of 16 bits or more, and numbers of
// rows are equal.
void copy_columns(Stream& stream, ConstTensorView source, std::int64_t source_column, TensorView destination,
                  std::int64_t destination_column, std::int64_t columns);

enum class Reduce : std::uint8_t { sum, max };
// Combines elements [begin, begin + count) of every input, first to last, and writes the result to the start of every
// output. An output may be that part of an input. At least two inputs, of any dtype; 16-bit elements are combined in
// float32 and rounded once.
void reduce_elements(Stream& stream, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                     std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs);

// A device's implementations of the functions above.
struct ElementwiseKernels {
  decltype(&weft::cast) cast;
  decltype(&weft::add) add;
  decltype(&weft::combine) combine;
  decltype(&weft::divide_by_root) divide_by_root;
  decltype(&weft::fill) fill;
  decltype(&weft::square_sum) square_sum;
  decltype(&weft::count_nonfinite) count_nonfinite;
  decltype(&weft::copy_columns) copy_columns;
  decltype(&weft::reduce_elements) reduce_elements;
};

}  // namespace weft

namespace weft::cpu {

// The CPU's. The calling thread completes the work before the call returns.
//
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
