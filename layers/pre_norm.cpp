#include "layers/pre_norm.h"

#include "layers/kernels/multiply.h"
#include "layers/kernels/rms_norm.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {

ParameterSpec PreNorm::parameter() const {
  ParameterSpec weight =
      whole_parameter(name_ + ".norm.weight", family_, setup_.model.hidden_size, 1, Initializer::ones);
  weight.tensor_replicated = true;
  return weight;
}

std::int64_t PreNorm::activation_bytes() const {
  return setup_.slice_tokens() *
         (2 * setup_.model.hidden_size * size_of(setup_.dtype_of(family_)) + size_of(DType::float32));
}

std::int64_t PreNorm::pending_bytes(bool with_normed) const {
  const std::int64_t tensor = setup_.slice_tokens() * setup_.model.hidden_size * size_of(setup_.dtype_of(family_));
  const std::int64_t of_weight =
      setup_.trains(family_) ? 2 * tensor + setup_.slice_tokens() * size_of(DType::float32) : 0;
  return of_weight + (with_normed ? tensor : 0);
}

void PreNorm::forward(LayerContext& context, ConstTensorView weight, Tensor x, Kept& kept) const {
  MemoryLedger& ledger = context.kernels.ledger;
  kept.normed = ledger.allocate(Bucket::activations, setup_.dtype_of(family_), x.rows(), x.columns());
  kept.inverse_rms = ledger.allocate(Bucket::activations, DType::float32, x.rows(), 1);
  rms_norm_forward(context.kernels, x, weight, static_cast<float>(setup_.model.rms_norm_eps), kept.normed,
                   kept.inverse_rms);
  kept.x = std::move(x);
}

Tensor PreNorm::backward_input(LayerContext& context, ConstTensorView weight, Tensor dnormed, Tensor residual,
                               Kept& kept) const {
  kept.dnormed = std::move(dnormed);
  rms_norm_backward_input(context.kernels, kept.dnormed, kept.x, weight, kept.inverse_rms, residual);
  if (!setup_.trains(family_)) {
    for (Tensor* tensor : {&kept.x, &kept.inverse_rms, &kept.dnormed}) tensor->reset();
  }
  return residual;
}

void PreNorm::backward_weight(LayerContext& context, TensorView gradient, const Kept& kept) const {
  if (gradient.empty()) return;
  rms_norm_backward_weight(context.kernels, kept.dnormed, kept.x, kept.inverse_rms, gradient);
}

Tensor onto_residual(LayerContext& context, ConstTensorView a, ConstTensorView weight, ConstTensorView x) {
  KernelContext& kernels = context.kernels;
  Tensor y = kernels.ledger.allocate(Bucket::activations, x.dtype(), a.rows(), weight.columns());
  if (context.tensor.size() == 1) {
    multiply_onto(kernels, a, weight, Transpose::no, x, y);
    return y;
  }
  multiply(kernels, a, Transpose::no, weight, Transpose::no, y, false);
  Tensor slice = scatter_tokens(context, std::move(y));
  const PhaseClock::Scope scope(kernels.clock, Phase::elementwise, kernels.stream);
  add(kernels.stream, x, slice);
  return slice;
}

}  // namespace weft
