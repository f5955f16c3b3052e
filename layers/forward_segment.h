// The part of a segment that is never trained with: what it has no backward for is refused.
#pragma once

#include "layers/segment.h"
#include "parallel/runtime/error.h"

namespace weft {

class ForwardSegment : public Segment {
 public:
  std::int64_t pending_bytes() const final { return 0; }
  bool reads_weights_backward() const final { return false; }
  Tensor backward_input(LayerContext&, Weights, Tensor, Saved&) final { refuse(); }
  void backward_weight(LayerContext&, Gradients, Saved&) final { refuse(); }

 private:
  [[noreturn]] void refuse() const { fail("{} generates text and has no backward", name()); }
};

}  // namespace weft
