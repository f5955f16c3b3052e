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

}  // namespace

void delay(Stream& stream, double microseconds) {
  cuda::launch(cuda::native(stream), 1, 1, 0, delay_kernel, static_cast<unsigned long long>(1e3 * microseconds));
}

}  // namespace weft
