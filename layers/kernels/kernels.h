// The kernels of a device: one table of functions per operation, with the contracts of its header. The public functions
// of those headers check what must hold on every device and call the table of their context.
#pragma once

#include "layers/kernels/attention.h"
#include "layers/kernels/cross_entropy.h"
#include "layers/kernels/float8.h"
#include "layers/kernels/routing.h"
#include "layers/kernels/token_kernels.h"

namespace weft {

struct LayerKernels {
  AttentionKernels attention;
  CrossEntropyKernels cross_entropy;
  EmbeddingKernels embedding;
  Float8Kernels float8;
  LoadBalanceKernels load_balance;
  PermutationKernels permutation;
  RmsNormKernels rms_norm;
  RotaryKernels rotary;
  RoutingKernels routing;
  SwigluKernels swiglu;
};

// All work is done by the calling thread before a call returns.
LayerKernels cpu_layer_kernels();

}  // namespace weft
