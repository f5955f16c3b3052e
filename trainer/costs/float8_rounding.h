// The rounding that products in 8 bits add to a step (layers/kernels/float8.h).
#pragma once

#include "parallel/runtime/parameter.h"
#include "trainer/config/config.h"

namespace weft {

// Bytes that a rank moves in one microbatch to round the factors of a part's products, by the computation that reads
// them. Each of a product's three computations rounds its two factors: input and weight, gradient and weight, gradient
// and input. A factor with one scale is read twice, for the scale and to be rounded, and one with scales of blocks
// once; both are written once. Routed tokens are shared evenly; padding and scales are not counted. All zero where
// products read their factors as stored.
struct RoundedBytes {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
};
RoundedBytes rounded_bytes(const Config& config, const ModelPart& part);

}  // namespace weft
