// Reductions over the threads of a warp or a block, deterministic: equal numbers give equal bits. Every thread of the
// warp or block takes part and gets the result.
#pragma once

#include <cuda_runtime.h>

namespace weft::cuda {

inline constexpr unsigned all_lanes_of_warp = 0xffffffffu;
inline constexpr int warp_size = 32;

__device__ inline int lane_of_warp() {
  return static_cast<int>(threadIdx.x) % warp_size;
}

struct AddTo {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// The maximum with a NaN is NaN.
struct LargerOf {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a != a || a > b ? a : b;
  }
};
// A number wins over a NaN.
struct LargerNumber {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over each `lanes` neighbouring lanes, a power of two.
template <typename T, typename Combine>
__device__ T reduce_lanes(T value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(all_lanes_of_warp, value, distance));
  }
  return value;
}
template <typename T, typename Combine>
__device__ T reduce_warp(T value, Combine combine) {
  return reduce_lanes(value, warp_size, combine);
}

// The block has one dimension; blockDim.x is a multiple of 32, at most 1024. `neutral` is the neutral element of
// `combine`. A kernel may call this several times.
template <typename T, typename Combine>
__device__ T reduce_block(T value, Combine combine, T neutral) {
  __shared__ T of_warp[warp_size];
  value = reduce_warp(value, combine);
  const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
  __syncthreads();  // an earlier call may still be reading
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  return reduce_warp(lane < warps ? of_warp[lane] : neutral, combine);
}

template <typename T>
__device__ T sum_of_warp(T value) {
  return reduce_warp(value, AddTo());
}
template <typename T>
__device__ T sum_of_block(T value) {
  return reduce_block(value, AddTo(), T(0));
}

}  // namespace weft::cuda
