// The choices that go through where an expert may take only some. A block has one expert in one sequence.
//
// Bytes, with n choices of a sequence: 8 n read for an expert within its capacity. For one beyond it,
// DropPolicy::probability reads up to 32 times that, mostly from caches. add_dropped reads 8 T K, spread_slots as much,
// and writes half.
#include <algorithm>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int threads_of_block = 256;
constexpr int warps_of_block = threads_of_block / warp_size;

// The order of weights as integers. The sign of a NaN does not count.
__device__ int key_of_weight(float weight) {
  return __float_as_int(weight) & 0x7fffffff;
}

struct SequenceChoices {
  const float* weights;
  std::int32_t* indices;
  int count;
  int expert;

  // Choices of the expert with a key of at least `key`.
  __device__ int at_least(int key) const {
    int own = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads_of_block) {
      if (indices[i] == expert && key_of_weight(weights[i]) >= key) ++own;
    }
    return sum_of_block(own);
  }
};

// Drops choices with keys below `key`, and of those with this key, or of all `in_order`, all but the first `room`.
__device__ void drop_beyond(const SequenceChoices& choices, bool in_order, int key, int room) {
  __shared__ int sums[warps_of_block];
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  int before = 0;  // choices with this key in earlier rounds
  for (int first = 0; first < choices.count; first += threads_of_block) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool ours = i < choices.count && choices.indices[i] == choices.expert;
    const int own = ours ? key_of_weight(choices.weights[i]) : 0;
    const bool equal = ours && (in_order || own == key);
    const unsigned of_warp = __ballot_sync(all_lanes_of_warp, equal);
    __syncthreads();
    if (lane == 0) sums[warp] = __popc(of_warp);
    __syncthreads();
    int place = before + __popc(of_warp & ((1u << lane) - 1u));
    for (int w = 0; w < warps_of_block; ++w) {
      if (w < warp) place += sums[w];
      before += sums[w];
    }
    const bool below = ours && !in_order && own < key;
    if (below || (equal && place >= room)) choices.indices[i] = no_expert;
  }
}

__global__ void limit_kernel(const float* weights, std::int32_t* indices, int count, int capacity, DropPolicy policy) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * count;
  const SequenceChoices choices{weights + begin, indices + begin, count, static_cast<int>(blockIdx.x)};
  if (choices.at_least(0) <= capacity) return;
  if (policy == DropPolicy::position) return drop_beyond(choices, /*in_order=*/true, 0, capacity);
  // The largest key that at least `capacity` choices reach, bit by bit.
  int key = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const int larger = key | (1 << bit);
    if (choices.at_least(larger) >= capacity) key = larger;
  }
  drop_beyond(choices, /*in_order=*/false, key, capacity - choices.at_least(key + 1));
}

// A block works out for each expert the number to add to its slots. It sums the counts before it anew, because they are
// few and come from the caches.
__global__ void spread_kernel(const std::int32_t* indices, const std::int32_t* counts, std::int64_t count, int experts,
                              int rows, std::int32_t* slots) {
  int* farther = dynamic_shared<int>();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += threads_of_block) {
    int before = 0;
    for (int other = 0; other < e; ++other) before += counts[other];
    farther[e] = e * rows - before;
  }
  __syncthreads();
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * threads_of_block;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads_of_block + threadIdx.x; i < count;
       i += threads) {
    if (slots[i] != no_expert) slots[i] += farther[indices[i]];
  }
}

__global__ void add_dropped_kernel(const std::int32_t* indices, const std::int32_t* slots, std::int64_t count,
                                   double* total) {
  std::int64_t dropped = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads_of_block) {
    if (indices[i] != no_expert && slots[i] == no_expert) ++dropped;
  }
  const int all = sum_of_block(static_cast<int>(dropped));
  if (threadIdx.x == 0) *total += static_cast<double>(all);
}

}  // namespace

void limit_choices(KernelContext& context, ConstTensorView weights, std::int64_t sequence_length, std::int64_t experts,
                   std::int64_t capacity, DropPolicy policy, TensorView indices) {
  const std::int64_t count = sequence_length * indices.columns(), sequences = indices.rows() / sequence_length;
  launch(native(context.stream), dim3(static_cast<unsigned>(experts), static_cast<unsigned>(sequences)),
         dim3(threads_of_block), 0, limit_kernel, elements<float>(weights), elements<std::int32_t>(indices),
         static_cast<int>(count), static_cast<int>(capacity), policy);
}

void spread_slots(KernelContext& context, ConstTensorView indices, ConstTensorView counts, std::int64_t rows,
                  TensorView slots) {
  constexpr std::int64_t most_blocks = 256, of_thread = 4;
  const std::int64_t wanted = (slots.size() + of_thread * threads_of_block - 1) / (of_thread * threads_of_block);
  const auto experts = static_cast<std::size_t>(counts.size());
  launch(native(context.stream), dim3(static_cast<unsigned>(std::min(wanted, most_blocks))), dim3(threads_of_block),
         experts * sizeof(int), spread_kernel, elements<std::int32_t>(indices), elements<std::int32_t>(counts),
         slots.size(), static_cast<int>(experts), static_cast<int>(rows), elements<std::int32_t>(slots));
}

void add_dropped(KernelContext& context, ConstTensorView indices, ConstTensorView slots, TensorView total) {
  launch(native(context.stream), dim3(1), dim3(threads_of_block), 0, add_dropped_kernel,
         elements<std::int32_t>(indices), elements<std::int32_t>(slots), indices.size(), elements<double>(total));
}

}  // namespace weft::cuda
