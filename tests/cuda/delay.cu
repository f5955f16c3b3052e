#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "tests/cuda/delay.h"

namespace weft {
namespace {

__device__ unsigned long long nanoseconds() {
  unsigned long long time = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void delay_kernel(unsigned long long duration) {
  const unsigned long long begin = nanoseconds();
  while (nanoseconds() - begin < duration) __nanosleep(200);
}

__global__ void await_kernel(const int* flag, unsigned long long patience) {
  const unsigned long long begin = nanoseconds();
  while (*static_cast<const volatile int*>(flag) == 0 && nanoseconds() - begin < patience) __nanosleep(200);
}

__global__ void raise_kernel(int* flag) {
  *static_cast<volatile int*>(flag) = 1;
  __threadfence_system();
}

}  // namespace

void delay(Stream& stream, double microseconds) {
  cuda::launch(cuda::native(stream), 1, 1, 0, delay_kernel, static_cast<unsigned long long>(1e3 * microseconds));
}

void await(Stream& stream, const int* flag, double seconds, cudaEvent_t begun, unsigned blocks) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeLaunchCompletionEvent;
  attribute.val.launchCompletionEvent.event = begun;
  const cudaLaunchConfig_t config{.gridDim = blocks,
                                  .blockDim = 512,
                                  .dynamicSmemBytes = 0,
                                  .stream = cuda::native(stream),
                                  .attrs = &attribute,
                                  .numAttrs = begun == nullptr ? 0u : 1u};
  WEFT_CUDA_CHECK(cudaLaunchKernelEx(&config, await_kernel, flag, static_cast<unsigned long long>(1e9 * seconds)));
}

void raise(Stream& stream, int* flag) {
  cuda::launch(cuda::native(stream), 1, 1, 0, raise_kernel, flag);
}

}  // namespace weft
