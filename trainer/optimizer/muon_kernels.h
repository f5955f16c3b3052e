// The part of Muon that each device implements: two passes over elements. Work is queued on the stream. The gradient
// scale stays in device memory, so that a step never waits for its own norm. If the scale is not finite the step is
// void: momentum and parameters are not written.
#pragma once

#include "parallel/runtime/device.h"
#include "parallel/runtime/tensor.h"

namespace weft {

// The momentum pass over one run of rows. The element views have equal sizes and do not overlap.
struct MuonMomentum {
  ConstTensorView gradients;       // float32
  ConstTensorView gradient_scale;  // [1, 1] float32
  float rate = 0.0f;               // momentum coefficient
  TensorView momentum;             // float32
  TensorView update;               // float32 or bfloat16; empty if another rank sends these rows
};
struct MuonChange {
  ConstTensorView direction;       // float32 or bfloat16
  ConstTensorView gradient_scale;  // [1, 1] float32; not finite: the step is void
  float step_size = 0.0f, decay = 0.0f;
  TensorView values;  // float32
};

struct MuonKernels {
  // g = gradient_scale gradient; momentum = rate momentum + g; update = g + rate momentum (Nesterov), or zero if the
  // step is void.
  void (*momentum)(Stream& stream, const MuonMomentum& rows);
  // values -= step_size direction + decay values.
  void (*change)(Stream& stream, const MuonChange& rows);
};

MuonKernels cpu_muon_kernels();

}  // namespace weft
