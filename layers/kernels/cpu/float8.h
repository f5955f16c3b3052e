// Numbers of 8 bits back in bfloat16, in which the CPU multiplies them.
#pragma once

#include <vector>

#include "parallel/runtime/tensor.h"

namespace weft::cpu {

// The elements times scale [1, 1] float32, which is exact. The result lies in `storage`.
ConstTensorView from_float8(ConstTensorView elements, ConstTensorView scale, std::vector<bfloat16>& storage);

}  // namespace weft::cpu
