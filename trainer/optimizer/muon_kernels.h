// What a device brings to Muon: its two passes over elements. Work is queued on the stream; the gradient scale stays in
// device memory, so that a step never waits for its own norm. Where it is not finite, the step is void: nothing that
// lasts is written.
#pragma once

#include "parallel/runtime/device.h"
#include "parallel/runtime/tensor.h"

namespace weft {

// Of one run of rows. Views have equal sizes and do not overlap.
struct MuonMomentum {
  ConstTensorView gradients;       // float32
  ConstTensorView gradient_scale;  // [1, 1] float32
  float rate = 0.0f;               // of the momentum
  TensorView momentum;             // float32
  TensorView update;               // float32 or bfloat16; empty where another rank sends these rows
};
struct MuonChange {
  ConstTensorView direction;       // float32 or bfloat16
  ConstTensorView gradient_scale;  // [1, 1] float32; tells whether the step is void
  float step_size = 0.0f, decay = 0.0f;
  TensorView values;  // float32
};

struct MuonKernels {
  // g = gradient_scale gradient; momentum = rate momentum + g; update = g + rate momentum (Nesterov), or zero where the
  // step is void.
  void (*momentum)(Stream& stream, const MuonMomentum& rows);
  // values -= step_size direction + decay values.
  void (*change)(Stream& stream, const MuonChange& rows);
};

MuonKernels cpu_muon_kernels();

}  // namespace weft
