// SwiGLU feed-forward over all tokens of the microbatch, its width split over the tensor group: down(silu(gate(x)) *
// up(x)). A part, not a segment: the dense block and the shared expert both hold one.
#pragma once

#include "layers/segment.h"

namespace weft {

class SwigluMlp {
 public:
  // `name` is put before "gate_proj.weight" and so on; `width` is of the whole tensor group.
  SwigluMlp(const SegmentSetup& setup, const std::string& name, std::int64_t width);

  struct Kept {
    // [microbatch tokens, 2 * width], [.., width], width of this rank. With SegmentSetup::recompute_cheap the input
    // gradient recomputes `activated`.
    Tensor gate_up, activated;
    Tensor dgate_up;  // in the storage of gate_up, from input gradient to weight gradient
  };

  std::vector<ParameterSpec> parameters() const;  // gate_proj, up_proj, down_proj
  std::int64_t activation_bytes() const;
  std::int64_t pending_bytes() const;
  // Of the owner: the gathers of x and dy, and the scatters of their results.
  std::vector<SegmentTraffic> traffic() const;

  // x: all tokens. Returns the slice of the residual [slice tokens, hidden] with the branch added to it; of an empty
  // residual, the branch alone.
  Tensor forward(LayerContext& context, Weights weights, ConstTensorView x, ConstTensorView residual, Kept& kept) const;
  // dy: all tokens. Returns this rank's part of dx.
  Tensor backward_input(LayerContext& context, Weights weights, ConstTensorView dy, Kept& kept) const;
  void backward_weight(LayerContext& context, Gradients gradients, ConstTensorView x, ConstTensorView dy,
                       const Kept& kept) const;

 private:
  SegmentSetup setup_;
  std::string name_;
  ProductFormat format_;
  std::int64_t width_, local_width_;
};

}  // namespace weft
