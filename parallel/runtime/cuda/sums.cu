// Sums over one array; 4 bytes are read for each element.
#include <algorithm>
#include <memory>

#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

// Threads take four elements at a time by index, not by address, so that the order of additions depends on the size
// alone.
constexpr int sum_threads = 512, sum_width = 4;

// sums[block] = the block's part of the sum of squares; added to the previous value if `adds`.
__global__ void __launch_bounds__(sum_threads, 2)
    square_sum_kernel(const float* data, std::int64_t count, bool aligned, bool adds, double* sums) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * sum_threads;
  const std::int64_t vectors = count / sum_width;
  std::int64_t vector = static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x;
  const std::int64_t alone = vectors * sum_width + vector;
  double sums_of_place[sum_width] = {};
#pragma unroll 4
  for (; vector < vectors; vector += threads) {
    const float* from = data + vector * sum_width;
    Vector<float, sum_width> loaded;
    if (aligned) {
      loaded = load_vector(from);
    } else {
#pragma unroll
      for (int i = 0; i < sum_width; ++i) loaded[i] = from[i];
    }
#pragma unroll
    for (int i = 0; i < sum_width; ++i) {
      const double value = loaded[i];
      sums_of_place[i] += value * value;
    }
  }
  double sum = (sums_of_place[0] + sums_of_place[1]) + (sums_of_place[2] + sums_of_place[3]);
  // Up to three elements are left, one for each of the first threads.
  if (alone < count) sum += static_cast<double>(data[alone]) * data[alone];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = adds ? sums[blockIdx.x] + sum : sum;
}

__global__ void __launch_bounds__(sum_threads, 2) add_sums_kernel(const double* sums, int count, double* total) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += sum_threads) sum += sums[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *total += sum;
}

__global__ void __launch_bounds__(sum_threads, 2)
    count_nonfinite_kernel(const float* data, const Extent extent, int* count) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * sum_threads;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * sum_threads + threadIdx.x;
  int found = 0;
#pragma unroll 4
  for (std::int64_t vector = thread; vector < extent.vectors; vector += threads) {
    const Vector<float> loaded = load_vector(data + extent.head + vector * sum_width);
#pragma unroll
    for (int i = 0; i < sum_width; ++i) found += is_finite(loaded[i]) ? 0 : 1;
  }
  const std::int64_t in_vectors = extent.vectors * sum_width;
  for (std::int64_t i = thread; i < extent.count - in_vectors; i += threads) {
    found += is_finite(data[i < extent.head ? i : i + in_vectors]) ? 0 : 1;
  }
  found = sum_of_block(found);
  if (threadIdx.x == 0 && found != 0) atomicAdd(count, found);  // of integers: every order gives the same sum
}

}  // namespace

// One block sums a small tensor. For a larger tensor, blocks write their sums to scratch memory, and one more block
// adds them up.
void square_sum(Stream& stream, ConstTensorView source, TensorView sum) {
  constexpr std::int64_t of_block = 32 * sum_threads * sum_width, most_blocks = 1024;
  const float* data = elements<float>(source);
  double* total = elements<double>(sum);
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  const auto blocks = static_cast<int>(std::min((source.size() + of_block - 1) / of_block, most_blocks));
  if (blocks == 1) {
    launch(native(stream), 1, sum_threads, 0, square_sum_kernel, data, source.size(), aligned, true, total);
    return;
  }
  // Outside every ledger: a few KiB that no prediction contains.
  void* allocated = nullptr;
  WEFT_CUDA_CHECK(cudaMallocAsync(&allocated, static_cast<std::size_t>(blocks) * sizeof(double), native(stream)));
  // The next checked call reports an error.
  const auto release = [&](void* block) { static_cast<void>(cudaFreeAsync(block, native(stream))); };
  const std::unique_ptr<void, decltype(release)> scratch(allocated, release);
  auto* sums = static_cast<double*>(allocated);
  launch(native(stream), static_cast<unsigned>(blocks), sum_threads, 0, square_sum_kernel, data, source.size(), aligned,
         false, sums);
  launch(native(stream), 1, sum_threads, 0, add_sums_kernel, sums, blocks, total);
}

void count_nonfinite(Stream& stream, ConstTensorView source, TensorView count) {
  constexpr std::int64_t of_block = 8 * sum_threads * sum_width, most_blocks = 4096;
  const auto blocks = std::min((source.size() + of_block - 1) / of_block, most_blocks);
  const float* data = elements<float>(source);
  launch(native(stream), static_cast<unsigned>(blocks), sum_threads, 0, count_nonfinite_kernel, data,
         extent_of(source.size(), sum_width, data), elements<std::int32_t>(count));
}

}  // namespace weft::cuda
