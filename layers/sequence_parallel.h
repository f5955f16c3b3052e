// Moving between a tensor group's slices of tokens and the whole microbatch. With one rank nothing is copied.
#pragma once

#include "layers/segment.h"

namespace weft {

// All tokens of the microbatch, [slice rows * group size, columns]: gathered when the group has several ranks,
// otherwise the slice itself, which must outlive this object.
class GatheredTokens {
 public:
  GatheredTokens(LayerContext& context, ConstTensorView slice);
  ConstTensorView view() const { return view_; }

 private:
  Tensor storage_;
  ConstTensorView view_;
};

// Sums partial results of the whole microbatch over the tensor group and keeps this rank's slice of the tokens.
Tensor scatter_tokens(LayerContext& context, Tensor partial);

// The gradient of a segment's output for all tokens of the microbatch, from `dy`, that of this rank's slice. With one
// rank that is all there is: `dy` itself, which is then empty.
Tensor gather_gradient(LayerContext& context, Tensor& dy);
// What is left to do with `dy`, and with `whole` of gather_gradient() if it was called: the gradient of the residual
// connection, and a tensor for the sum with that of the branch, in its place, unless `whole` is read again (`stays`)
// and is all there is: then none.
struct ResidualGradient {
  ConstTensorView residual;
  Tensor dx;
};
ResidualGradient residual_gradient(Tensor dy, Tensor& whole, bool stays);

// Adjacent weights of equal columns, read as one taller matrix. They must touch in memory, as shard units lay them out.
// Of gradients all or none are empty.
ConstTensorView stacked_rows(Weights weights);
TensorView stacked_rows(Gradients gradients);

// Collectives that these perform on [tokens, hidden] of a dtype, for traffic().
SegmentTraffic gather_traffic(const SegmentSetup& setup, SegmentTraffic::When when, DType dtype);
SegmentTraffic scatter_traffic(const SegmentSetup& setup, SegmentTraffic::When when, DType dtype);
// What backward_weight gathers for the parameters of a family: nothing where they are frozen.
SegmentTraffic weight_gather_traffic(const SegmentSetup& setup, Family family, DType dtype);

}  // namespace weft
