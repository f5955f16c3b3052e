// Conversion between a tensor group's slices of tokens and the whole microbatch. With one rank nothing is copied.
#pragma once

#include "layers/segment.h"

namespace weft {

// All tokens of the microbatch, [slice rows * group size, columns]: gathered if the group has several ranks, otherwise
// the slice itself, which must outlive this object.
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

// The gradient of a segment's output for all tokens of the microbatch, gathered from `dy`, the gradient of this rank's
// slice. With one rank `dy` itself is moved to the result.
Tensor gather_gradient(LayerContext& context, Tensor& dy);
// The gradient of the residual connection, and in the same storage the tensor `dx` for its sum with the branch's
// gradient. `whole` is the result of gather_gradient(`dy`) if that was called. It is released unless it is read again
// (`stays`). `dx` is empty if `whole` stays and `dy` was moved to it.
struct ResidualGradient {
  ConstTensorView residual;
  Tensor dx;
};
ResidualGradient residual_gradient(Tensor dy, Tensor& whole, bool stays);

// Adjacent weights of equal columns, viewed as one taller matrix. They must be contiguous in memory, as shard units lay
// them out. Either all of the gradients are empty or none, and all are fresh or none.
ConstTensorView stacked_rows(Weights weights);
Gradient stacked_rows(Gradients gradients);

// The collectives of the functions above on [tokens, hidden] of a dtype, for traffic().
SegmentTraffic gather_traffic(const SegmentSetup& setup, SegmentTraffic::When when, DType dtype);
SegmentTraffic scatter_traffic(const SegmentSetup& setup, SegmentTraffic::When when, DType dtype);
// The gather in backward_weight for the parameters of a family; zero if they are frozen.
SegmentTraffic weight_gather_traffic(const SegmentSetup& setup, Family family, DType dtype);

}  // namespace weft
