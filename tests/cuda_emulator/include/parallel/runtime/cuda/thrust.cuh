// Stands before the product's header of the same name when a source is compiled for the emulator. The same algorithms
// run one after the other by the one thread of a kernel.
#pragma once

#include <thrust/execution_policy.h>

#include <type_traits>

#include "parallel/runtime/cuda/launch.cuh"

namespace weft::cuda {

template <typename Queue>
void thrust_on(LaunchStream on, const Queue& queue) {
  static_assert(std::is_trivially_copyable_v<Queue>, "what is queued holds pointers and sizes, no objects");
  cuda_emulator::KernelLaunch launched{dim3(1), dim3(1), 0, on.place, {}, [queue] { queue(thrust::seq); }};
  check(cuda_emulator::enqueue_kernel(on.stream, std::move(launched)), "an algorithm of Thrust", on.place);
}

}  // namespace weft::cuda
