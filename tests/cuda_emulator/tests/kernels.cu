// Kernels for the tests of the emulator, written and started as the product's are.
#include "tests/cuda_emulator/tests/kernels.h"

#include "parallel/runtime/cuda/launch.cuh"

namespace weft::cuda {
namespace {

__global__ void __launch_bounds__(256)
    affine_kernel(const float* __restrict__ x, float* __restrict__ y, int n, float scale, float offset) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  y[i] = __fmaf_rn(scale, __ldg(x + i), offset);
}

__device__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// One block per row: sums by warp, then over the warps through shared memory.
__global__ void row_sum_kernel(const float* x, float* sums, int columns) {
  __shared__ float partial[32];
  float sum = 0.0f;
  for (int column = static_cast<int>(threadIdx.x); column < columns; column += static_cast<int>(blockDim.x))
    sum +=
        x[static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column)];
  sum = warp_sum(sum);
  if (threadIdx.x % warpSize == 0) partial[threadIdx.x / warpSize] = sum;
  __syncthreads();
  if (threadIdx.x < warpSize) {
    sum = threadIdx.x < blockDim.x / warpSize ? partial[threadIdx.x] : 0.0f;
    sum = warp_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  }
}

__global__ void reverse_kernel(float* x, bool with_barrier) {
  float* shared = dynamic_shared<float>();
  shared[threadIdx.x] = x[threadIdx.x];
  if (with_barrier) __syncthreads();
  x[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void unwritten_shared_kernel(float* x) {
  x[threadIdx.x] = dynamic_shared<float>()[threadIdx.x];
}

__global__ void shared_overflow_kernel() {
  dynamic_shared<float>()[blockDim.x] = 1.0f;
}

__global__ void early_return_kernel(int returning) {
  if (static_cast<int>(threadIdx.x) < returning) return;
  __syncthreads();
}

__global__ void half_shuffle_kernel(float* x) {
  if (threadIdx.x % 32 < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}

__global__ void collectives_kernel(int* results) {
  const int lane = static_cast<int>(threadIdx.x);
  int* mine = results + lane * 8;
  mine[0] = __shfl_sync(0xffffffffu, lane * 10, 5);
  mine[1] = __shfl_up_sync(0xffffffffu, lane, 3);
  mine[2] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  mine[3] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 2));
  mine[4] = __any_sync(0xffffffffu, lane == 7) + 2 * __all_sync(0xffffffffu, lane < 31);
  mine[5] = __reduce_add_sync(0xffffffffu, lane);
  mine[6] = __reduce_min_sync(0xffffffffu, lane - 20);
  // The halves of a warp may meet apart.
  mine[7] = lane < 16 ? __reduce_max_sync(0x0000ffffu, lane) : __reduce_max_sync(0xffff0000u, lane);
}

__global__ void count_kernel(int* count, float* sum) {
  atomicAdd(count, 1);
  atomicAdd(sum, 0.5f);
}

__global__ void write_behind_kernel(float* x, int index) {
  x[index] = 0.0f;
}

__global__ void barriers_kernel(int barriers) {
  for (int i = 0; i < barriers; ++i) __syncthreads();
}

}  // namespace

void affine(cudaStream_t stream, const float* x, float* y, int n, float scale, float offset) {
  launch(stream, static_cast<unsigned>((n + 255) / 256), 256, 0, affine_kernel, x, y, n, scale, offset);
}
void row_sum(cudaStream_t stream, const float* x, float* sums, int rows, int columns) {
  launch(stream, static_cast<unsigned>(rows), 128, 0, row_sum_kernel, x, sums, columns);
}
void reverse(cudaStream_t stream, float* x, int n, bool with_barrier) {
  const auto threads = static_cast<unsigned>(n);
  launch(stream, 1, threads, threads * sizeof(float), reverse_kernel, x, with_barrier);
}
void unwritten_shared(cudaStream_t stream, float* x, int n) {
  const auto threads = static_cast<unsigned>(n);
  launch(stream, 1, threads, threads * sizeof(float), unwritten_shared_kernel, x);
}
void shared_overflow(cudaStream_t stream) {
  launch(stream, 1, 64, 64 * sizeof(float), shared_overflow_kernel);
}
void early_return(cudaStream_t stream, int returning) {
  launch(stream, 2, 64, 0, early_return_kernel, returning);
}
void half_shuffle(cudaStream_t stream, float* x) {
  launch(stream, 1, 32, 0, half_shuffle_kernel, x);
}
void collectives(cudaStream_t stream, int* results) {
  launch(stream, 1, 32, 0, collectives_kernel, results);
}
void count(cudaStream_t stream, int blocks, int threads, int* counter, float* sum) {
  launch(stream, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, count_kernel, counter, sum);
}
void write_behind(cudaStream_t stream, float* x, int index) {
  launch(stream, 1, 1, 0, write_behind_kernel, x, index);
}
void barriers(cudaStream_t stream, int blocks, int number) {
  launch(stream, static_cast<unsigned>(blocks), 256, 0, barriers_kernel, number);
}

}  // namespace weft::cuda
