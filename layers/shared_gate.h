// The gate of a shared expert: a router to one expert, which every token chooses. The weight of the choice is a sigmoid
// of the token.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "layers/router.h"

namespace weft {

class SharedGate {
 public:
  SharedGate(const SegmentSetup& setup, const std::string& scope, int block);

  struct Kept {
    Router::Kept router;
    Tensor slots;  // [slice, 1] int32: of token t, t
    Tensor out;    // [slice, hidden]: the shared expert's output before the gate
  };

  std::vector<ParameterSpec> parameters() const { return router_.parameters(); }
  std::int64_t activation_bytes() const;
  std::int64_t pending_bytes() const { return router_.pending_bytes(); }
  bool reads_x_for_weight() const { return router_.reads_x_for_weight(); }

  // y += gate(x) * out. All are [slice, hidden].
  void forward(LayerContext& context, Weights weights, ConstTensorView x, Tensor out, TensorView y, Kept& kept) const;
  // Returns the gradients of `out` and of x through the gate.
  std::pair<Tensor, Tensor> backward_input(LayerContext& context, ConstTensorView weight, ConstTensorView dy,
                                           Kept& kept) const;
  void backward_weight(LayerContext& context, const Gradient& gradient, ConstTensorView x, const Kept& kept) const {
    router_.backward_weight(context, gradient, x, kept.router);
  }

 private:
  SegmentSetup setup_;
  Router router_;
};

}  // namespace weft
