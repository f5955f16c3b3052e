// From the device-neutral Stream to CUDA's.
#pragma once

#include <cuda_runtime_api.h>

#include "parallel/runtime/device.h"

namespace weft::cuda {

// The CUDA stream behind a stream of a CUDA device (device.h); nothing else is ever handed to CUDA code.
cudaStream_t native(Stream& stream);

}  // namespace weft::cuda
