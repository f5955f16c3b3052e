#include "layers/pre_norm.h"

#include "layers/kernels/multiply.h"
#include "layers/kernels/token_kernels.h"
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
  const std::int64_t tensors = setup_.recompute_cheap ? 1 : 2;
  return setup_.slice_tokens() *
         (tensors * setup_.model.hidden_size * size_of(setup_.dtype_of(family_)) + size_of(DType::float32));
}

std::int64_t PreNorm::pending_bytes(bool with_normed) const {
  const std::int64_t hidden = setup_.model.hidden_size;
  const std::int64_t normed = with_normed ? setup_.slice_tokens() * hidden * size_of(setup_.dtype_of(family_)) : 0;
  return normed + (setup_.trains(family_) ? hidden * size_of(DType::float32) : 0);
}

void PreNorm::forward(LayerContext& context, ConstTensorView weight, Tensor x, Kept& kept) const {
  kept.x = std::move(x);
  kept.inverse_rms = context.kernels.activation(DType::float32, kept.x.rows(), 1);
  norm(context, weight, kept);
}

// A recomputation overwrites `inverse_rms` with the same bits.
void PreNorm::norm(LayerContext& context, ConstTensorView weight, Kept& kept) const {
  kept.normed = context.kernels.activation(setup_.dtype_of(family_), kept.x.rows(), kept.x.columns());
  rms_norm_forward(context.kernels, kept.x, weight, static_cast<float>(setup_.model.rms_norm_eps), kept.normed,
                   kept.inverse_rms);
}

void PreNorm::end_forward(Kept& kept) const {
  if (setup_.recompute_cheap) kept.normed.reset();
}

Tensor PreNorm::backward_input(LayerContext& context, ConstTensorView weight, Tensor dnormed, ConstTensorView residual,
                               Tensor dx, bool with_normed, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  if (!dx.allocated()) dx = kernels.activation(kept.x.dtype(), kept.x.rows(), kept.x.columns());
  if (setup_.trains(family_)) kept.dweight = kernels.activation(DType::float32, weight.rows(), 1);
  rms_norm_backward(kernels, dnormed, kept.x, weight, kept.inverse_rms, residual, dx, kept.dweight);
  dnormed.reset();
  if (with_normed && setup_.recompute_cheap) norm(context, weight, kept);
  for (Tensor* tensor : {&kept.x, &kept.inverse_rms}) tensor->reset();
  return dx;
}

void PreNorm::backward_weight(LayerContext& context, const Gradient& gradient, const Kept& kept) const {
  if (gradient.empty()) return;
  const PhaseClock::Scope scope(context.kernels.clock, Phase::elementwise, context.kernels.stream);
  add(context.kernels.stream, kept.dweight, gradient);
}

Tensor onto_residual(LayerContext& context, ProductFormat format, ConstTensorView a, ConstTensorView weight,
                     ConstTensorView x) {
  KernelContext& kernels = context.kernels;
  Tensor y = kernels.activation(a.dtype(), a.rows(), weight.columns());
  if (context.tensor.size() == 1) {
    multiply(kernels, format, {.a = a, .b = weight, .c = y, .addend = x});
    return y;
  }
  multiply(kernels, format, {.a = a, .b = weight, .c = y});
  Tensor slice = scatter_tokens(context, std::move(y));
  if (x.empty()) return slice;
  const PhaseClock::Scope scope(kernels.clock, Phase::elementwise, kernels.stream);
  add(kernels.stream, x, slice);
  return slice;
}

}  // namespace weft
