// The division of an operation on arrays into vectors and single elements.
#pragma once

#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {

inline constexpr int extent_threads = 256;
// Number of vectors that a thread loads before it stores the first one.
inline constexpr int vectors_in_flight = 4;

// An operation on `count` elements: `vectors` vectors from element `head` on, and all other elements one by one.
struct Extent {
  std::int64_t count, head, vectors;
};

// The number of elements before the first vector boundary; -1 if elements are not aligned to their own size.
template <typename T>
std::int64_t elements_before_vector(const T* data, int width) {
  const std::uintptr_t bytes = width * sizeof(T), past = reinterpret_cast<std::uintptr_t>(data) % bytes;
  if (past % sizeof(T) != 0) return -1;
  return static_cast<std::int64_t>((bytes - past) % bytes / sizeof(T));
}

// Vectors are used if all arrays reach a vector boundary at the same element.
template <typename... T>
Extent extent_of(std::int64_t count, int width, const T*... arrays) {
  const std::int64_t heads[] = {elements_before_vector(arrays, width)...};
  const std::int64_t head = heads[0];
  for (std::int64_t other : heads) {
    if (other != head || head < 0 || head > count) return {count, 0, 0};
  }
  return {count, head, (count - head) / width};
}

// Number of elements in 16 bytes of the wider type.
template <typename A, typename B = A>
inline constexpr int common_width = 16 / static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

}  // namespace weft::cuda
