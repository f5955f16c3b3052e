#pragma once

#include "trainer/optimizer/optimizer_kernels.h"

namespace weft::cuda {

OptimizerKernels optimizer_kernels();

}  // namespace weft::cuda
