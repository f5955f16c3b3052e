// The rounding that precision.compute = "float8" adds to a step (layers/kernels/float8.h).
#pragma once

#include "parallel/runtime/parameter.h"
#include "trainer/config/config.h"

namespace weft {

// Elements of one microbatch that a rank rounds for the products of a part of the model, by the computation that reads
// them. Each of a product's three computations rounds its two factors: input and weight, gradient and weight, gradient
// and input. Routed tokens are shared evenly. All zero without float8.
struct RoundedElements {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
};
RoundedElements rounded_elements(const Config& config, const ModelPart& part);

// Two reads in 16 bits, for the scale and for the rounding, and a write.
inline constexpr double bytes_per_rounded_element = 5.0;

}  // namespace weft
