// Thrust on a given stream. Only algorithms without memory of their own may be used here (sequence, scatter, transform,
// tabulate, for_each, searches). Others would take memory from cudaMalloc, which waits for the device. The tests put a
// header of the same name before this one that runs the algorithms on the host (tests/cuda_emulator).
#pragma once

#include <thrust/execution_policy.h>
#include <thrust/system_error.h>

#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/error.h"

namespace weft::cuda {

// Calls queue(policy), which passes the policy to an algorithm. The kernel is queued on the stream without a wait.
// `queue` holds pointers and sizes by value. Throws Error naming the place of the call if queueing fails.
template <typename Queue>
void thrust_on(LaunchStream on, const Queue& queue) {
  try {
    queue(thrust::cuda::par_nosync.on(on.stream));
  } catch (const thrust::system_error& error) {
    fail("{}:{}: an algorithm of Thrust could not be queued: {}", on.place.file_name(), on.place.line(), error.what());
  }
}

}  // namespace weft::cuda
