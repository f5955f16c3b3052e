#include "layers/shared_gate.h"

#include "layers/kernels/routing.h"

namespace weft {
namespace {

// It keeps no float32 copy of its input beside that of the block's router.
SegmentSetup gate_setup(SegmentSetup setup) {
  setup.model.moe = {.num_experts = 1, .num_experts_per_tok = 1, .norm_topk_prob = false, .scoring = Scoring::sigmoid};
  setup.recompute_cheap = true;
  return setup;
}

}  // namespace

SharedGate::SharedGate(const SegmentSetup& setup, const std::string& scope, int block)
    : setup_(setup), router_(gate_setup(setup), scope + ".shared_expert_gate", block) {}

std::int64_t SharedGate::activation_bytes() const {
  const std::int64_t out = setup_.model.hidden_size * size_of(setup_.compute);
  return router_.activation_bytes() + setup_.slice_tokens() * (size_of(DType::int32) + out);
}

void SharedGate::forward(LayerContext& context, Weights weights, ConstTensorView x, Tensor out, TensorView y,
                         Kept& kept) const {
  KernelContext& kernels = context.kernels;
  router_.forward(context, weights, {}, x, kept.router);
  Tensor count = kernels.ledger.allocate(Bucket::moe_routing, DType::int32, 1, 1);
  kept.slots = kernels.ledger.allocate(Bucket::moe_routing, DType::int32, x.rows(), 1);
  sort_by_expert(kernels, kept.router.indices, /*some_unrouted=*/false, count, kept.slots);
  unpermute_rows(kernels, out, kept.slots, kept.router.weights, y);
  kept.out = std::move(out);
}

std::pair<Tensor, Tensor> SharedGate::backward_input(LayerContext& context, ConstTensorView weight, ConstTensorView dy,
                                                     Kept& kept) const {
  KernelContext& kernels = context.kernels;
  Tensor dweights = kernels.ledger.allocate(Bucket::moe_routing, DType::float32, dy.rows(), 1);
  Tensor dout = kernels.ledger.allocate(Bucket::activations, dy.dtype(), dy.rows(), dy.columns());
  unpermute_rows_backward(kernels, dy, kept.out, kept.slots, kept.router.weights, dout, dweights);
  kept.out.reset();
  kept.slots.reset();
  return {std::move(dout), router_.backward_input(context, weight, dweights, kept.router)};
}

}  // namespace weft
