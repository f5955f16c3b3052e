// The optimizer of a CUDA device.
#pragma once

#include "trainer/optimizer/optimizer_kernels.h"

namespace weft::cuda {

OptimizerKernels optimizer_kernels();  // update.cu

}  // namespace weft::cuda
