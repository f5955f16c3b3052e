// Tiles of 64 x 64 elements in shared memory and their products, for the scan of a state space.
//
// A product sums over the rows of both factors: result[i][j] = sum over k of a[k][i] b[k][j]. A factor that is summed
// over its columns is turned. Elements of 16 bits are multiplied by tensor cores, float32 by all threads; sums are
// float32. Thread (y, x) of 16 x 16 owns four rows of a result from 4 y, and four columns from 4 x.
#pragma once

#include <cuda_runtime.h>
#include <mma.h>

#include <cstdint>
#include <type_traits>

#include "layers/kernels/cuda/attention_tiles.cuh"
#include "layers/kernels/gpu_scan.h"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {

inline constexpr int tile_edge = static_cast<int>(GpuScan::tile);
inline constexpr int edge_of_part = 4;  // of a thread's part of a product
static_assert(tile_edge == edge_of_part * threads_of_edge);
inline constexpr int square_elements = tile_edge * tile_edge;

// Tiles of 64 columns.
__host__ __device__ inline int scan_tiles(int columns) {
  return (columns + tile_edge - 1) / tile_edge;
}

// Rows and columns of a matrix, zero outside of them.
template <typename T>
struct MatrixPart {
  T* data;
  int stride, rows, columns;  // a chunk's rows are less than 2^31 elements

  __device__ float operator()(int row, int column) const {
    return row < rows && column < columns ? to_float(data[row * stride + column]) : 0.0f;
  }
  // The elements from `column` on, 16 bytes at a time if all are there and aligned.
  template <int N>
  __device__ void operator()(int row, int column, float (&to)[N]) const {
    using Element = std::remove_const_t<T>;
    constexpr int width = N < 16 / static_cast<int>(sizeof(T)) ? N : 16 / static_cast<int>(sizeof(T));
    using Piece = Vector<Element, width>;
    const T* const first = data + row * stride + column;
    if (row < rows && column + N <= columns && reinterpret_cast<std::uintptr_t>(first) % sizeof(Piece) == 0) {
#pragma unroll
      for (int i = 0; i < N; i += width) {
        const Piece piece = load_vector<width>(static_cast<const Element*>(first) + i);
#pragma unroll
        for (int j = 0; j < width; ++j) to[i + j] = to_float(piece[j]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) to[i] = (*this)(row, column + i);
    }
  }
  __device__ MatrixPart from(int row, int column) const {
    return {data + row * stride + column, stride, rows - row, columns - column};
  }
};

// A thread's part of a product.
struct ScanPart {
  float at[edge_of_part][edge_of_part] = {};

  __device__ static int row(int i) { return edge_of_part * thread_y() + i; }
  __device__ static int column(int j) { return edge_of_part * thread_x() + j; }

  __device__ void add(float factor, const ScanPart& other) {
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) {
#pragma unroll
      for (int j = 0; j < edge_of_part; ++j) at[i][j] = fmaf(factor, other.at[i][j], at[i][j]);
    }
  }
  template <typename T>
  __device__ void load(const MatrixPart<T>& from) {
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) from(row(i), column(0), at[i]);
  }
  template <typename T>
  __device__ void store(const MatrixPart<T>& to) const {
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) {
      T* const first = to.data + row(i) * to.stride + column(0);
      const int columns = row(i) < to.rows ? to.columns - column(0) : 0;
      Vector<T, edge_of_part> elements;
#pragma unroll
      for (int j = 0; j < edge_of_part; ++j) elements[j] = from_float<T>(at[i][j]);
      if (columns >= edge_of_part && reinterpret_cast<std::uintptr_t>(first) % sizeof(elements) == 0) {
        store_vector(first, elements);
      } else {
#pragma unroll
        for (int j = 0; j < edge_of_part; ++j) {
          if (j < columns) first[j] = elements[j];
        }
      }
    }
  }
};

// A filled tile, for a product.
template <typename T, bool turned>
struct ScanFactor {
  const T* at;
};

// Rows are 16 bytes longer than their elements, so that neighbouring rows begin in other banks. Tensor cores read
// addresses that are multiples of 32 bytes.
template <typename T>
struct alignas(32) ScanTile {
  static constexpr bool for_tensor_cores = sizeof(T) == 2;
  static constexpr int stride = tile_edge + 16 / static_cast<int>(sizeof(T));
  T at[tile_edge * stride];

  // values(row, column, elements) gives the elements of a row from `column` on. Tensor cores read factors of either
  // kind, so that a thread takes 16 bytes at a time. The threads of a float32 product read rows, so that a turned tile
  // has at[column][row]. There neighbouring threads take neighbouring columns, of one row or of four: then the threads
  // of a warp write to 32 banks. The caller synchronises.
  template <bool turned, typename Values>
  __device__ ScanFactor<T, turned> fill(Values values) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (for_tensor_cores) {
      constexpr int width = Vector<T>::size, vectors = tile_edge / width, rows_at_once = threads_of_tile / vectors;
#pragma unroll
      for (int i = 0; i < tile_edge / rows_at_once; ++i) {
        const int row = thread / vectors + i * rows_at_once, column = thread % vectors * width;
        float elements[width];
        values(row, column, elements);
        Vector<T> rounded;
#pragma unroll
        for (int j = 0; j < width; ++j) rounded[j] = from_float<T>(elements[j]);
        store_shared_vector(at + row * stride + column, rounded);
      }
    } else {
      const int lane = thread % warp_size, warp = thread / warp_size;
      const int first_row = turned ? lane / 8 : thread / tile_edge;
      const int column = turned ? warp * 8 + lane % 8 : thread % tile_edge;
#pragma unroll 4
      for (int row = first_row; row < tile_edge; row += threads_of_tile / tile_edge) {
        float element[1];
        values(row, column, element);
        at[turned ? column * stride + row : row * stride + column] = element[0];
      }
    }
    return {at};
  }
};

// A sum of products, by tensor cores. A warp has 16 rows and 32 columns of the result.
template <typename T>
class ProductSum {
 public:
  __device__ ProductSum() {
#pragma unroll
    for (Sum& sum : sums_) nvcuda::wmma::fill_fragment(sum, 0.0f);
  }
  // Adds the product of the first `count` rows; those behind them are zero.
  template <bool a_turned, bool b_turned>
  __device__ void add(ScanFactor<T, a_turned> a, ScanFactor<T, b_turned> b, int count) {
    using nvcuda::wmma::row_major, nvcuda::wmma::col_major;
    constexpr int stride = ScanTile<T>::stride;
    Fragment<nvcuda::wmma::matrix_a, std::conditional_t<a_turned, row_major, col_major>> left;
    Fragment<nvcuda::wmma::matrix_b, std::conditional_t<b_turned, col_major, row_major>> right;
    for (int k = 0; k < count; k += edge) {
      nvcuda::wmma::load_matrix_sync(left, a.at + (a_turned ? row() * stride + k : k * stride + row()), stride);
#pragma unroll
      for (int i = 0; i < count_of_sums; ++i) {
        const int column = first_column() + i * edge;
        nvcuda::wmma::load_matrix_sync(right, b.at + (b_turned ? column * stride + k : k * stride + column), stride);
        nvcuda::wmma::mma_sync(sums_[i], left, right, sums_[i]);
      }
    }
  }
  // The threads synchronise.
  __device__ ScanPart part() const {
    constexpr int stride = ScanTile<float>::stride;
    __shared__ ScanTile<float> room;
    __syncthreads();  // an earlier call may still be reading
#pragma unroll
    for (int i = 0; i < count_of_sums; ++i) {
      nvcuda::wmma::store_matrix_sync(room.at + row() * stride + first_column() + i * edge, sums_[i], stride,
                                      nvcuda::wmma::mem_row_major);
    }
    __syncthreads();
    ScanPart part;
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) {
      const auto row = load_vector<edge_of_part>(room.at + ScanPart::row(i) * stride + ScanPart::column(0));
#pragma unroll
      for (int j = 0; j < edge_of_part; ++j) part.at[i][j] = row[j];
    }
    return part;
  }

 private:
  static constexpr int edge = 16, count_of_sums = 2;
  template <typename Use, typename Layout>
  using Fragment = nvcuda::wmma::fragment<Use, edge, edge, edge, T, Layout>;
  using Sum = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, edge, edge, edge, float>;

  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) / warp_size;
  }
  __device__ static int row() {
    return warp() / 2 * edge;
  }
  __device__ static int first_column() {
    return warp() % 2 * count_of_sums * edge;
  }

  Sum sums_[count_of_sums];
};

template <>
class ProductSum<float> {
 public:
  template <bool a_turned, bool b_turned>
  __device__ void add(ScanFactor<float, a_turned> a, ScanFactor<float, b_turned> b, int count) {
    constexpr int stride = ScanTile<float>::stride;
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      const Vector<float> of_a = load_vector(a.at + k * stride + ScanPart::row(0));
      const Vector<float> of_b = load_vector(b.at + k * stride + ScanPart::column(0));
#pragma unroll
      for (int i = 0; i < edge_of_part; ++i) {
#pragma unroll
        for (int j = 0; j < edge_of_part; ++j) sums_.at[i][j] = fmaf(of_a[i], of_b[j], sums_.at[i][j]);
      }
    }
  }
  __device__ ScanPart part() const {
    return sums_;
  }

 private:
  ScanPart sums_;
};

}  // namespace weft::cuda
