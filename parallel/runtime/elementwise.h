// Element-wise work that is not neural: conversion, accumulation, sums of squares. CPU versions run on the calling
// thread at once. Sizes must agree; dtypes may be any of float32 and bfloat16 unless said otherwise.
#pragma once

#include "parallel/runtime/tensor.h"

namespace weft {

// destination = source, converted to the destination's dtype (bfloat16 rounds to nearest even).
void cast(ConstTensorView source, TensorView destination);
// destination += source, computed in float32; both float32, both bfloat16, or bfloat16 into float32.
void add(ConstTensorView source, TensorView destination);
// destination *= factor. float32 only.
void scale(TensorView destination, float factor);
void fill(TensorView destination, float value);
// Sum of squares of a float32 tensor in double, in an order of additions that depends on its size alone.
double square_sum(ConstTensorView source);
// Whether a float32 tensor holds a NaN or an infinity.
bool has_nonfinite(ConstTensorView source);

}  // namespace weft
