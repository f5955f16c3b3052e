// A matrix product of a layer, timed under its own phase. Kernels with a phase of their own (attention) call the
// products directly.
#pragma once

#include "layers/kernels/context.h"
#include "layers/kernels/matrix_products.h"

namespace weft {

// See MatrixProducts::multiply.
inline void multiply(KernelContext& context, ConstTensorView a, Transpose transpose_a, ConstTensorView b,
                     Transpose transpose_b, TensorView c, bool accumulate) {
  const PhaseClock::Scope scope(context.clock, Phase::products, context.stream);
  context.products.multiply(a, transpose_a, b, transpose_b, c, accumulate);
}

// gradient += a^T b; a and b have one token per row. Does nothing if the gradient is empty (frozen parameter).
inline void add_weight_gradient(KernelContext& context, ConstTensorView a, ConstTensorView b, TensorView gradient) {
  if (!gradient.empty()) multiply(context, a, Transpose::yes, b, Transpose::no, gradient, true);
}

// See MatrixProducts::multiply_onto.
inline void multiply_onto(KernelContext& context, ConstTensorView a, ConstTensorView b, Transpose transpose_b,
                          ConstTensorView addend, TensorView c) {
  const PhaseClock::Scope scope(context.clock, Phase::products, context.stream);
  context.products.multiply_onto(context.stream, {a, Transpose::no, b, transpose_b, c, false, addend});
}

// See MatrixProducts::multiply_all.
inline void multiply_all(KernelContext& context, std::span<const Product> products) {
  const PhaseClock::Scope scope(context.clock, Phase::products, context.stream);
  context.products.multiply_all(products);
}

}  // namespace weft
