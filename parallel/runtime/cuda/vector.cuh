// Elements of kernels: conversion to and from float32, and 16-byte access. An operation on arrays is divided into
// vectors and single elements, one on rows into items.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "parallel/runtime/element_type.h"
#include "parallel/runtime/tensor.h"

namespace weft::cuda {

// The type of a tensor's elements in kernels.
template <typename T>
struct DeviceElement {
  using type = T;
};
template <>
struct DeviceElement<bfloat16> {
  using type = __nv_bfloat16;
};
template <>
struct DeviceElement<float16> {
  using type = __half;
};

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float to_float(__half value) {
  return __half2float(value);
}
// Rounds to nearest, ties to even.
template <typename T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

// The exponent of a NaN or an infinity is all ones.
__device__ inline bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}

// Elements that a thread moves at once, at an address that is a multiple of their bytes. 16 bytes by default; fewer if
// the same elements are wider on the other side, and one element if nothing is aligned.
template <typename T, int N = 16 / static_cast<int>(sizeof(T))>
struct alignas(N * sizeof(T)) Vector {
  static constexpr int size = N;
  T elements[N];

  __device__ T& operator[](int i) { return elements[i]; }
  __device__ const T& operator[](int i) const { return elements[i]; }
};
template <typename T>
__device__ Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}
template <int N, typename T>
__device__ Vector<T, N> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}
// The same bytes in machine words.
template <typename T, int N>
using Words =
    std::conditional_t<sizeof(Vector<T, N>) == 16, uint4,
                       std::conditional_t<sizeof(Vector<T, N>) == 8, uint2,
                                          std::conditional_t<sizeof(Vector<T, N>) == 4, unsigned, Vector<T, N>>>>;
// Packed in registers until the elements are needed: the compiler often unpacks what load_vector is still waiting for.
template <int N, typename T>
__device__ Words<T, N> load_words(const T* from) {
  return *reinterpret_cast<const Words<T, N>*>(from);
}
// To device memory, in one instruction: the compiler divides many an assignment of a vector into its elements.
template <typename T, int N>
__device__ void store_vector(T* to, const Vector<T, N>& vector) {
  if constexpr (sizeof(vector) == 16 || sizeof(vector) == 8) {
    __stwb(reinterpret_cast<Words<T, N>*>(to), std::bit_cast<Words<T, N>>(vector));
  } else {
    *reinterpret_cast<Vector<T, N>*>(to) = vector;
  }
}
template <typename T, int N>
__device__ void store_shared_vector(T* to, const Vector<T, N>& vector) {
  *reinterpret_cast<Vector<T, N>*>(to) = vector;
}

// The elements of the tensor in the type that kernels use; the tensor's dtype must be T's.
template <typename T>
typename DeviceElement<T>::type* elements(TensorView tensor) {
  return reinterpret_cast<typename DeviceElement<T>::type*>(tensor.as<T>().data());
}
template <typename T>
const typename DeviceElement<T>::type* elements(ConstTensorView tensor) {
  return reinterpret_cast<const typename DeviceElement<T>::type*>(tensor.as<T>().data());
}
// Calls body<E, T> for the element type of a dtype that layers compute in, and its type in kernels.
template <typename Body>
void with_elements(DType dtype, Body body) {
  with_element_type(dtype, [&](auto element) {
    using E = decltype(element);
    body.template operator()<E, typename DeviceElement<E>::type>();
  });
}
// Calls body<E, T, N>. N elements are moved at once: those of 16 bytes, or one.
template <typename Body>
void with_vectors(DType dtype, bool vectors, Body body) {
  with_elements(dtype, [&]<typename E, typename T>() {
    if (vectors) {
      body.template operator()<E, T, Vector<T>::size>();
    } else {
      body.template operator()<E, T, 1>();
    }
  });
}
// Whether matrices with rows of `columns` elements can all be accessed in vectors: every row begins at a multiple of
// 16 bytes.
inline bool vectorise(DType dtype, std::int64_t columns, std::initializer_list<ConstTensorView> matrices) {
  return columns * size_of(dtype) % 16 == 0 && std::ranges::all_of(matrices, [](const ConstTensorView& matrix) {
           return reinterpret_cast<std::uintptr_t>(matrix.data()) % 16 == 0;
         });
}
// Calls body with a value of the widest type that can move rows of `row_bytes` between these addresses.
template <typename Body>
void with_units(std::int64_t row_bytes, const void* from, const void* to, Body body) {
  const std::uintptr_t alignment = static_cast<std::uintptr_t>(row_bytes) | reinterpret_cast<std::uintptr_t>(from) |
                                   reinterpret_cast<std::uintptr_t>(to);
  if (alignment % 16 == 0) {
    body(uint4());
  } else if (alignment % 4 == 0) {
    body(std::uint32_t());
  } else {
    body(std::uint16_t());
  }
}
// Null for an empty float32 tensor, which stands for none.
inline const float* pointer_or_null(ConstTensorView tensor) {
  return tensor.empty() ? nullptr : elements<float>(tensor);
}

// Blocks that have as many items each, the last one the rest.
inline unsigned blocks_for(std::int64_t items, std::int64_t items_of_block) {
  return static_cast<unsigned>((items + items_of_block - 1) / items_of_block);
}

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

// A grid over the rows of a matrix, with rows divided into items (vectors, words). No thread divides to find its place.
struct RowGrid {
  dim3 blocks, threads;
};

// Blocks have about 256 threads. Several blocks share a wide row; several narrow rows share a block.
inline RowGrid row_grid(std::int64_t rows, std::int64_t items) {
  constexpr std::int64_t block_threads = 256;
  if (rows <= 0 || items <= 0) return {dim3(0, 1, 1), dim3(1, 1, 1)};
  const std::int64_t parts = (items + block_threads - 1) / block_threads;
  std::int64_t across = (items + parts - 1) / parts;
  if (across > 32) across = (across + 31) / 32 * 32;
  const std::int64_t down = std::max<std::int64_t>(block_threads / across, 1);
  const std::int64_t most_rows = (std::int64_t{1} << 31) - 1, most_parts = 65535;
  return {dim3(static_cast<unsigned>(std::min((rows + down - 1) / down, most_rows)),
               static_cast<unsigned>(std::min(parts, most_parts)), 1),
          dim3(static_cast<unsigned>(across), static_cast<unsigned>(down), 1)};
}

// Calls body(row, item) for the running thread's share of rows x items.
template <typename Body>
__device__ void for_row_items(std::int64_t rows, std::int64_t items, Body body) {
  const std::int64_t row_step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  const std::int64_t item_step = static_cast<std::int64_t>(gridDim.y) * blockDim.x;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += row_step) {
    for (std::int64_t item = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; item < items;
         item += item_step) {
      body(row, item);
    }
  }
}

}  // namespace weft::cuda
