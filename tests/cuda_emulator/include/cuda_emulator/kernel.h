// A kernel on its way to an emulated stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <source_location>
#include <vector>

#include "cuda_emulator/threads.h"

namespace weft::cuda_emulator {

struct KernelLaunch {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;
  std::source_location place;
  // Arguments that are pointers. A pointer to pageable host memory is refused, as the kernel could not follow it.
  std::vector<const void*> pointers;
  std::function<void()> thread;  // runs the kernel once, as the thread that threadIdx names
};

// Queues the launch; what is wrong with the configuration is returned, as cudaLaunchKernel would.
cudaError_t enqueue_kernel(cudaStream_t stream, KernelLaunch launch);

}  // namespace weft::cuda_emulator
