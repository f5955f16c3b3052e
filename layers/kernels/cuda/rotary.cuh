// What the rotary kernels share: the heads of a launch, the pairs that a thread has of a head, and its place.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {

inline constexpr int rotary_threads = 128;  // of a block

// Neighbouring heads with one norm weight: all of q, or all of k.
template <typename T>
struct HeadGroup {
  std::int64_t column = 0;    // of the first head's first element in a row of qkv
  int heads = 0;              // 0: nothing to do
  const T* weight = nullptr;  // null: no norm
};

// Parameters of both directions. A block computes `chunk_tokens` tokens of group blockIdx.y.
template <typename T>
struct Heads {
  HeadGroup<T> groups[2];  // q, k
  const float* table;
  std::int64_t tokens, sequence_length, chunk_tokens;
  std::int64_t columns, rotated_columns;  // of a row of qkv and of its gradient; of a row of the result
  int half, lanes;                        // of a head; lanes is a power of two
  float eps;
};

// N pairs: their first elements, and their second elements half a head later.
template <int N, typename T>
struct Pairs {
  Vector<T, N> first, second;

  static __device__ Pairs load(const T* from, int half) { return {load_vector<N>(from), load_vector<N>(from + half)}; }
  __device__ void store(T* to, int half) const {
    store_vector(to, first);
    store_vector(to + half, second);
  }
};

// Floats of N pairs, in vectors of 16 bytes where N allows.
template <int N>
struct FloatPairs {
  float first[N], second[N];

  static __device__ FloatPairs load(const float* from, int half) {
    constexpr int width = N < 4 ? N : 4;
    FloatPairs result;
#pragma unroll
    for (int i = 0; i < N; i += width) {
      const Vector<float, width> a = load_vector<width>(from + i), b = load_vector<width>(from + half + i);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        result.first[i + j] = a[j];
        result.second[i + j] = b[j];
      }
    }
    return result;
  }
};

// The running thread's place: its lane of a head, and its head and token among those that the block computes at a time.
// The block advances by `head_step` and `token_step`; all threads take the same number of steps.
struct Place {
  int lane, head, head_step, token, token_step;
};
__device__ inline Place place(int lanes, int heads) {
  const int slot = static_cast<int>(threadIdx.x) / lanes, slots = rotary_threads / lanes;
  const int head_step = heads < slots ? heads : slots;
  return {static_cast<int>(threadIdx.x) % lanes, slot % head_step, head_step, slot / head_step, slots / head_step};
}

}  // namespace weft::cuda
