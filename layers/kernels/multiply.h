// A matrix product of a layer, timed under its own phase. Kernels with a phase of their own (attention) call the
// products directly.
#pragma once

#include "layers/kernels/context.h"
#include "layers/kernels/float8.h"
#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/gradient.h"

namespace weft {

// See MatrixProducts::multiply: factors in the dtype of their tensors.
inline void multiply(KernelContext& context, ConstTensorView a, Transpose transpose_a, ConstTensorView b,
                     Transpose transpose_b, TensorView c, bool accumulate) {
  const PhaseClock::Scope scope(context.clock, Phase::products, context.stream);
  context.products.multiply(a, transpose_a, b, transpose_b, c, accumulate);
}

// gradient += a^T b; a and b have one token per row. Does nothing if the gradient is empty (frozen parameter).
inline void add_weight_gradient(KernelContext& context, ConstTensorView a, ConstTensorView b,
                                const Gradient& gradient) {
  if (gradient.empty()) return;
  multiply(context, a, Transpose::yes, b, Transpose::no, gradient.view, !gradient.fresh);
}

// See MatrixProducts::run_all and multiply_in_float8, which alone reads `room`.
inline void multiply_all(KernelContext& context, ProductFormat format, std::span<const Product> products,
                         const Float8Room& room = {}) {
  if (format != ProductFormat::as_stored) return multiply_in_float8(context, format, products, room);
  const PhaseClock::Scope scope(context.clock, Phase::products, context.stream);
  context.products.run_all(products);
}

inline void multiply(KernelContext& context, ProductFormat format, const Product& product) {
  multiply_all(context, format, {&product, 1});
}

// The same as above in the given format; `which` of a and b is the gradient.
inline void add_weight_gradient(KernelContext& context, ProductFormat format, GradientFactor which, ConstTensorView a,
                                ConstTensorView b, const Gradient& gradient) {
  if (gradient.empty()) return;
  multiply(context, format, {a, Transpose::yes, b, Transpose::no, gradient.view, !gradient.fresh, {}, which});
}

}  // namespace weft
