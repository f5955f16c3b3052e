#include "layers/sequence_parallel.h"

#include <type_traits>
#include <utility>

namespace weft {
namespace {

const ConstTensorView& view_of(const ConstTensorView& weight) {
  return weight;
}
const TensorView& view_of(const Gradient& gradient) {
  return gradient.view;
}

template <typename Part>
auto stack(std::span<const Part> parts) {
  using View = std::decay_t<decltype(view_of(parts.front()))>;
  const View& first = view_of(parts.front());
  std::int64_t rows = 0;
  for (const Part& of : parts) {
    const View& part = view_of(of);
    require(part.empty() == first.empty(), "weights of one product are frozen together");
    require(part.columns() == first.columns() &&
                part.data() == first.data() + rows * first.columns() * size_of(first.dtype()),
            "stacked weights touch in memory");
    rows += part.rows();
  }
  return View(first.data(), first.dtype(), rows, first.columns());
}

SegmentTraffic token_traffic(const SegmentSetup& setup, SegmentTraffic::When when, CollectiveOp op, DType dtype) {
  return {when,
          op,
          Group::tp,
          setup.tensor > 1 ? 1 : 0,
          setup.tensor > 1 ? setup.microbatch_tokens * setup.model.hidden_size * size_of(dtype) : 0,
          false};
}

}  // namespace

GatheredTokens::GatheredTokens(LayerContext& context, ConstTensorView slice) : view_(slice) {
  if (context.tensor.size() == 1) return;
  storage_ = context.kernels.activation(slice.dtype(), slice.rows() * context.tensor.size(), slice.columns());
  context.tensor.all_gather(slice, storage_);
  view_ = storage_;
}

Tensor scatter_tokens(LayerContext& context, Tensor partial) {
  if (context.tensor.size() == 1) return partial;
  Tensor slice = context.kernels.activation(partial.dtype(), partial.rows() / context.tensor.size(), partial.columns());
  context.tensor.reduce_scatter(partial, slice);
  return slice;
}

Tensor gather_gradient(LayerContext& context, Tensor& dy) {
  if (context.tensor.size() == 1) return std::move(dy);
  Tensor whole = context.kernels.activation(dy.dtype(), dy.rows() * context.tensor.size(), dy.columns());
  context.tensor.all_gather(dy, whole);
  return whole;
}

ResidualGradient residual_gradient(Tensor dy, Tensor& whole, bool stays) {
  Tensor& own = dy.allocated() ? dy : whole;
  ResidualGradient gradient{own.view(), {}};
  if (dy.allocated() || !stays) gradient.dx = std::move(own);
  if (!stays) whole.reset();
  return gradient;
}

ConstTensorView stacked_rows(Weights weights) {
  return stack(weights);
}
Gradient stacked_rows(Gradients gradients) {
  const bool fresh = gradients.front().fresh;
  for (const Gradient& gradient : gradients) require(gradient.fresh == fresh, "one product makes all its gradients");
  return {stack(gradients), fresh};
}

SegmentTraffic gather_traffic(const SegmentSetup& setup, SegmentTraffic::When when, DType dtype) {
  return token_traffic(setup, when, CollectiveOp::all_gather, dtype);
}
SegmentTraffic weight_gather_traffic(const SegmentSetup& setup, Family family, DType dtype) {
  SegmentTraffic traffic = gather_traffic(setup, SegmentTraffic::When::backward_weight, dtype);
  if (!setup.trains(family)) traffic.count = traffic.bytes = 0;
  return traffic;
}
SegmentTraffic scatter_traffic(const SegmentSetup& setup, SegmentTraffic::When when, DType dtype) {
  return token_traffic(setup, when, CollectiveOp::reduce_scatter, dtype);
}

}  // namespace weft
