// Products of a warp by tensor cores (nvcuda::wmma of the toolkit's mma.h), for factors of 16 bits and sums in float32.
// The first lane has all elements of a fragment, and computes; all lanes come to each call. A GPU faults where an
// address or a stride is no multiple of what it loads at once, and so does this.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda_emulator/threads.h"
#include "cuda_emulator/warp.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t : std::uint8_t { mem_row_major, mem_col_major };

inline constexpr int edge = 16, bytes_of_address = 32, bytes_of_stride = 16;

// Row and column of a fragment are those of its matrix, whatever its layout in memory.
template <typename Use, int m, int n, int k, typename T, typename Layout = void>
struct fragment {
  static_assert(m == edge && n == edge && k == edge);
  float at[edge][edge];
};

inline bool begins_collective() {
  __syncwarp();
  return threadIdx.x % 32 == 0;
}
template <typename T>
void require_aligned(const T* address, unsigned stride) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes_of_address != 0 || stride * sizeof(T) % bytes_of_stride != 0) {
    weft::cuda_emulator::device::trap("a fragment at an address or stride that is not aligned");
  }
}

template <typename Fragment>
void fill_fragment(Fragment& fragment, float value) {
  if (!begins_collective()) return;
  for (auto& row : fragment.at) {
    for (float& element : row) element = value;
  }
}

inline float widened(float value) {
  return value;
}
inline float widened(__half value) {
  return __half2float(value);
}
inline float widened(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <typename Use, typename T, typename Layout>
void load_matrix_sync(fragment<Use, edge, edge, edge, T, Layout>& to, const T* from, unsigned stride) {
  constexpr bool by_rows = std::is_same_v<Layout, row_major>;
  require_aligned(from, stride);
  if (!begins_collective()) return;
  for (int i = 0; i < edge; ++i) {
    for (int j = 0; j < edge; ++j) to.at[i][j] = widened(by_rows ? from[i * stride + j] : from[j * stride + i]);
  }
}

template <typename T, typename A, typename B>
void mma_sync(fragment<accumulator, edge, edge, edge, float>& sum, const fragment<matrix_a, edge, edge, edge, T, A>& a,
              const fragment<matrix_b, edge, edge, edge, T, B>& b,
              const fragment<accumulator, edge, edge, edge, float>& addend) {
  if (!begins_collective()) return;
  sum = addend;
  for (int i = 0; i < edge; ++i) {
    for (int k = 0; k < edge; ++k) {
      for (int j = 0; j < edge; ++j) sum.at[i][j] += a.at[i][k] * b.at[k][j];
    }
  }
}

inline void store_matrix_sync(float* to, const fragment<accumulator, edge, edge, edge, float>& from, unsigned stride,
                              layout_t layout) {
  require_aligned(to, stride);
  if (!begins_collective()) return;
  for (int i = 0; i < edge; ++i) {
    for (int j = 0; j < edge; ++j) to[layout == mem_row_major ? i * stride + j : j * stride + i] = from.at[i][j];
  }
}

}  // namespace nvcuda::wmma
