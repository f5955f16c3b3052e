// The optimizer of a CUDA device.
#pragma once

#include "trainer/optimizer/muon_kernels.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft::cuda {

OptimizerKernels optimizer_kernels();  // update.cu
MuonKernels muon_kernels();            // muon.cu

}  // namespace weft::cuda
