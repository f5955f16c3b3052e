// The names that nvcc knows and g++ does not, so that a CUDA source compiles as C++ and its kernels run on the host.
// Compiled into every source of weft_emulated_library with -include; product code never names it.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#define WEFT_CUDA_EMULATOR 1

// Blocks run one after another, so storage that outlives a block is as good as storage of a block. What a block leaves
// there is what the next one finds, as on the device.
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __constant__
#define __constant__ static

#include "cuda_emulator/atomics.h"
#include "cuda_emulator/math.h"
#include "cuda_emulator/memory.h"
#include "cuda_emulator/threads.h"
#include "cuda_emulator/warp.h"
