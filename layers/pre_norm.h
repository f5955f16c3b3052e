// The RMSNorm in front of a segment and what it keeps of a microbatch. Every segment but the embedding begins with one,
// over its slice of the tokens; its weight is the same on all tensor ranks, which see other tokens.
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
    Tensor dnormed;  // from input gradient to weight gradient
    Tensor weight;   // likewise, a copy, where `normed` is made again from it: weight gradients read no weights
  };

  ParameterSpec parameter() const;
  std::int64_t activation_bytes() const;
  // The owner says whether its own weight gradients read `normed`.
  std::int64_t pending_bytes(bool with_normed) const;

  // x in the dtype of the family. Fills x, inverse_rms and normed.
  void forward(LayerContext& context, ConstTensorView weight, Tensor x, Kept& kept) const;
  // Behind the owner's last use of `normed` in its forward: drops it where it is made again
  // (SegmentSetup::remake_cheap).
  void end_forward(Kept& kept) const;
  // Takes the gradient of `normed` and that of the residual (empty for none), and returns the gradient of x: the sum of
  // both ways, in `dx`, which may be the residual's tensor, or in one of its own where that is empty. All that is kept
  // then is for weight gradients, and `normed`, which the owner drops where its own do not read it (`with_normed`).
  Tensor backward_input(LayerContext& context, ConstTensorView weight, Tensor dnormed, ConstTensorView residual,
                        Tensor dx, bool with_normed, Kept& kept) const;
  // In front of the owner's weight gradients that read `normed`: makes it again where it was dropped, bit for bit.
  void begin_backward_weight(LayerContext& context, Kept& kept) const;
  // An empty gradient is that of a frozen weight.
  void backward_weight(LayerContext& context, TensorView gradient, const Kept& kept) const;

 private:
  void norm(LayerContext& context, ConstTensorView weight, Kept& kept) const;

  SegmentSetup setup_;
  std::string name_;
  Family family_;
};

// The end of a branch and the residual connection: a weight + x over the tensor group, of which each rank gets its
// slice of tokens. a [microbatch tokens, inner], weight [inner, hidden], x [slice tokens, hidden]; x stays where it is
// kept.
Tensor onto_residual(LayerContext& context, ConstTensorView a, ConstTensorView weight, ConstTensorView x);

}  // namespace weft
