// The conversion of a device-neutral Stream to a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include "parallel/runtime/device.h"

namespace weft::cuda {

// The CUDA stream behind a stream of a CUDA device (device.h). CUDA code gets no other streams.
cudaStream_t native(Stream& stream);

}  // namespace weft::cuda
