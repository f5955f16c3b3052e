// The optimizer of a CUDA device.
#pragma once

#include "trainer/optimizer/optimizer_kernels.h"

namespace weft::cuda {

OptimizerKernels optimizer_kernels();  // adamw.cu

}  // namespace weft::cuda
