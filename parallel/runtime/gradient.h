// The gradient of a parameter while weight gradients add to it.
#pragma once

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/tensor.h"

namespace weft {

// float32, in the shape of the weight on the rank; empty if that is frozen. `fresh`: nothing has been added since the
// last reduction, and the memory has no contents. The first who adds overwrites, which saves clearing and reading it.
struct Gradient {
  TensorView view;
  bool fresh = false;

  bool empty() const { return view.empty(); }
};

// gradient += part.
inline void add(Stream& stream, ConstTensorView part, const Gradient& gradient) {
  gradient.fresh ? cast(stream, part, gradient.view) : add(stream, part, gradient.view);
}
// For work that adds to some elements only: the view, zero if nothing has been added.
inline TensorView cleared(Stream& stream, const Gradient& gradient) {
  if (gradient.fresh) fill(stream, gradient.view, 0.0f);
  return gradient.view;
}

}  // namespace weft
