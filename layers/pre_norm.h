// The RMSNorm in front of a segment, and the tensors it keeps of a microbatch. Every segment except embedding and
// passage begins with one, over its slice of tokens. Tensor ranks have the same weight and different tokens.
#pragma once

#include "layers/segment.h"

namespace weft {

class PreNorm {
 public:
  // `name` is put before ".norm.weight".
  PreNorm(const SegmentSetup& setup, const std::string& name, Family family)
      : setup_(setup), name_(name), family_(family) {}

  struct Kept {
    Tensor x, inverse_rms, normed;
    Tensor dweight;  // [hidden, 1] float32, from input gradient to weight gradient; none if the weight is frozen
  };

  ParameterSpec parameter() const;
  std::int64_t activation_bytes() const;
  // `with_normed`: whether the owner's weight gradients read `normed`.
  std::int64_t pending_bytes(bool with_normed) const;

  // x in the dtype of the family. Fills x, inverse_rms and normed.
  void forward(LayerContext& context, ConstTensorView weight, Tensor x, Kept& kept) const;
  // Called after the owner's last use of `normed` in its forward: drops `normed` if it is to be recomputed
  // (SegmentSetup::recompute_cheap).
  void end_forward(Kept& kept) const;
  // Takes the gradients of `normed` and of the residual connection (empty for none). Returns the gradient of x, the sum
  // over both paths, in `dx`, which may be the residual's tensor; an empty `dx` is allocated here. `kept` then holds
  // the gradient of the weight, and `normed`, recomputed bit for bit if it was dropped. The owner drops it if its
  // weight gradients do not read it (`with_normed`).
  Tensor backward_input(LayerContext& context, ConstTensorView weight, Tensor dnormed, ConstTensorView residual,
                        Tensor dx, bool with_normed, Kept& kept) const;
  // The gradient is empty if the weight is frozen.
  void backward_weight(LayerContext& context, const Gradient& gradient, const Kept& kept) const;

 private:
  void norm(LayerContext& context, ConstTensorView weight, Kept& kept) const;

  SegmentSetup setup_;
  std::string name_;
  Family family_;
};

// The end of a branch and the residual connection: a weight, summed over the tensor group, + x. Each rank gets its
// slice of tokens. a [microbatch tokens, inner], weight [inner, hidden], x [slice tokens, hidden], which is not
// modified, or empty for none.
Tensor onto_residual(LayerContext& context, ProductFormat format, ConstTensorView a, ConstTensorView weight,
                     ConstTensorView x);

}  // namespace weft
