// Muon's passes over elements on a CUDA device.
#pragma once

#include "trainer/optimizer/muon_kernels.h"

namespace weft::cuda {

MuonKernels muon_kernels();  // muon.cu

}  // namespace weft::cuda
