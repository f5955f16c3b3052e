#include "layers/kernels/swiglu.h"

#include "layers/kernels/kernels.h"

namespace weft {

void swiglu_forward(KernelContext& context, ConstTensorView gate_up, TensorView y) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(gate_up.rows() == y.rows() && gate_up.columns() == 2 * y.columns(), "gate and up are as wide as y each");
  context.kernels.swiglu.forward(context, gate_up, y);
}

void swiglu_backward(KernelContext& context, ConstTensorView dy, ConstTensorView gate_up, TensorView dgate_up) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(gate_up.rows() == dy.rows() && gate_up.columns() == 2 * dy.columns(), "gate and up are as wide as y each");
  require(dgate_up.rows() == gate_up.rows() && dgate_up.columns() == gate_up.columns(),
          "a gradient has the shape of its tensor");
  context.kernels.swiglu.backward(context, dy, gate_up, dgate_up);
}

}  // namespace weft
