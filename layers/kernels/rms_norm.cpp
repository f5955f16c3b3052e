#include "layers/kernels/rms_norm.h"

#include "layers/kernels/kernels.h"

namespace weft {
namespace {

void require_shapes(ConstTensorView like, ConstTensorView x, ConstTensorView inverse_rms) {
  require(like.rows() == x.rows() && like.columns() == x.columns(), "both sides of a norm have one shape");
  require(inverse_rms.size() == x.rows(), "a norm keeps one inverse root mean square a row");
}

}  // namespace

void rms_norm_forward(KernelContext& context, ConstTensorView x, ConstTensorView weight, float eps, TensorView y,
                      TensorView inverse_rms) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require_shapes(y, x, inverse_rms);
  require(weight.size() == x.columns(), "a norm has one weight a column");
  context.kernels.rms_norm.forward(context, x, weight, eps, y, inverse_rms);
}

void rms_norm_backward(KernelContext& context, ConstTensorView dy, ConstTensorView x, ConstTensorView weight,
                       ConstTensorView inverse_rms, ConstTensorView residual, TensorView dx, TensorView dweight) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require_shapes(dy, x, inverse_rms);
  require_shapes(dx, x, inverse_rms);
  if (!residual.empty()) require_shapes(residual, x, inverse_rms);
  require(weight.size() == x.columns(), "a norm has one weight a column");
  require(dweight.empty() || dweight.size() == x.columns(), "a norm has one gradient a weight");
  context.kernels.rms_norm.backward(context, dy, x, weight, inverse_rms, residual, dx, dweight);
}

}  // namespace weft
