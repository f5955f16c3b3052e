// Element-wise work that is not neural: conversion, accumulation, sums of squares, reductions over ranks. All of it is
// queued on a stream and done by its device. Sizes must agree; dtypes may be any of float32, bfloat16 and float16
// unless said otherwise.
#pragma once

#include <span>

#include "parallel/runtime/tensor.h"

namespace weft {

class Stream;

// destination = source, converted to the destination's dtype, rounded once to nearest even; or, for equal dtypes of any
// kind, copied.
void cast(Stream& stream, ConstTensorView source, TensorView destination);
// destination += source, computed in float32; both of one dtype, or anything into float32.
void add(Stream& stream, ConstTensorView source, TensorView destination);
// destination *= factor. float32 only.
void scale(Stream& stream, TensorView destination, float factor);
// destination = factor source + destination_factor destination, in float32 and rounded once; equal dtypes.
void combine(Stream& stream, float factor, ConstTensorView source, float destination_factor, TensorView destination);
// destination /= sqrt(square_sum), zero where that is zero: each element times the root's reciprocal in double, rounded
// once. float32; square_sum [1, 1] float64 stays in device memory.
void divide_by_root(Stream& stream, ConstTensorView square_sum, TensorView destination);
// Any dtype; integers take the value truncated.
void fill(Stream& stream, TensorView destination, float value);
// sum [1, 1] float64 += the sum of squares of a float32 tensor, in double, in an order of additions that depends on its
// size alone.
void square_sum(Stream& stream, ConstTensorView source, TensorView sum);
// count [1, 1] int32 += how many elements of a float32 tensor are NaN or infinite.
void count_nonfinite(Stream& stream, ConstTensorView source, TensorView count);
// Copies `columns` columns of every row, beginning at the given columns; equal dtypes and rows.
void copy_columns(Stream& stream, ConstTensorView source, std::int64_t source_column, TensorView destination,
                  std::int64_t destination_column, std::int64_t columns);

enum class Reduce : std::uint8_t { sum, max };
// Elements [begin, begin + count) of every input are combined, first to last, and the result is written to the start of
// every output. An output may be that part of an input. At least two inputs of any dtype; those of 16 bits are combined
// in float32 and rounded once.
void reduce_elements(Stream& stream, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                     std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs);

// What a device brings to the functions above.
struct ElementwiseKernels {
  decltype(&weft::cast) cast;
  decltype(&weft::add) add;
  decltype(&weft::scale) scale;
  decltype(&weft::combine) combine;
  decltype(&weft::divide_by_root) divide_by_root;
  decltype(&weft::fill) fill;
  decltype(&weft::square_sum) square_sum;
  decltype(&weft::count_nonfinite) count_nonfinite;
  decltype(&weft::copy_columns) copy_columns;
  decltype(&weft::reduce_elements) reduce_elements;
};

}  // namespace weft
