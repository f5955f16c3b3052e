// A sample of a memory curve, with the bytes of units and activations.
#pragma once

#include "parallel/pipeline/simulation/memory_curve.h"

namespace weft {

inline MemorySample sample(double time, std::int64_t parameters, std::int64_t gradients, std::int64_t communication,
                           std::int64_t activations) {
  MemorySample made{.time = time};
  made.bytes[Bucket::unsharded_parameters] = parameters;
  made.bytes[Bucket::unsharded_gradients] = gradients;
  made.bytes[Bucket::communication] = communication;
  made.bytes[Bucket::activations] = activations;
  return made;
}

}  // namespace weft
