// Kernels that take time on a GPU, or wait, and compute nothing.
#pragma once

#include <cuda_runtime_api.h>

#include "parallel/runtime/device.h"

namespace weft {

// Queues one thread that does nothing for so long.
void delay(Stream& stream, double microseconds);

// Queues blocks of 512 threads, as a collective has, that wait until `flag` is not zero, or for so long. `flag` is
// pinned memory. `begun` is an event without time, or null; CUDA documents that it is reached when all blocks have
// begun.
void await(Stream& stream, const int* flag, double seconds, cudaEvent_t begun = nullptr, unsigned blocks = 32);

// Queues one thread that sets `flag` to one.
void raise(Stream& stream, int* flag);

}  // namespace weft
