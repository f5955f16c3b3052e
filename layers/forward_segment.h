// Base of the segments for text generation: forward only. Their backward functions throw Error (failure).
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
