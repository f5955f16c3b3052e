// Numbers of 8 bits back in bfloat16, in which the CPU multiplies them.
#pragma once

#include <vector>

#include "layers/kernels/matrix_products.h"

namespace weft::cpu {

// The elements times the scales of their blocks, which is exact. The result lies in `storage`.
ConstTensorView from_float8(ConstTensorView elements, const FactorScales& scales, std::vector<bfloat16>& storage);

}  // namespace weft::cpu
