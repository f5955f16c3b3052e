// Floating-point operations of a training step that the model itself demands: forward and backward of every matrix
// product, causal attention at half its square, nothing recomputed. The field's formula (6 per active weight and
// token).
#pragma once

#include "trainer/config/config.h"

namespace weft {

double step_flops(const Config& config);

}  // namespace weft
