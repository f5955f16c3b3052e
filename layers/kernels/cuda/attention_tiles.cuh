// Products of tiles in shared memory by a block of 16 x 16 threads, for plain_attention.cu. A tile has `edge` rows of a
// head in float32. Its rows are `dims` wide, zero beyond the head. 4 floats of padding separate rows, so that threads
// that read 16 bytes of neighbouring rows use different banks.
//
// Thread (y, x) owns rows y, y + 16, ... of every result. Of a score block it owns columns x, x + 16 and so on. Of a
// result as wide as a head it owns four columns from 4 x, four from 4 x + 64, and so on. Threads of equal y are half a
// warp. The scan of a state space has the same threads and padding.
#pragma once

#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {

inline constexpr int threads_of_edge = 16;
inline constexpr int threads_of_tile = threads_of_edge * threads_of_edge;
inline constexpr int padding = 4;

__device__ inline int thread_x() {
  return static_cast<int>(threadIdx.x) % threads_of_edge;
}
__device__ inline int thread_y() {
  return static_cast<int>(threadIdx.x) / threads_of_edge;
}

// Sizes for heads of at most `dims` columns. Wide heads have smaller tiles because registers of a thread are limited.
template <int head_columns>
struct TileShape {
  static constexpr int dims = head_columns;
  static constexpr int edge = dims <= 128 ? 64 : 32;
  static constexpr int rows_of_thread = edge / threads_of_edge;
  static constexpr int quads_of_thread = dims / (4 * threads_of_edge);
  static constexpr int stride = dims + padding;
  static constexpr int score_stride = edge + padding;
  static constexpr std::size_t tile_floats = static_cast<std::size_t>(edge) * stride;
  static constexpr std::size_t score_floats = static_cast<std::size_t>(edge) * score_stride;
};

// A thread's part of a score block, and of a result as wide as a head.
template <typename Tiles>
struct ScorePart {
  float at[Tiles::rows_of_thread][Tiles::rows_of_thread] = {};
};
template <typename Tiles>
struct HeadPart {
  float at[Tiles::rows_of_thread][Tiles::quads_of_thread][4] = {};
};

// One head in the rows of a tensor. `vectors`: whether 16 bytes can be read at once.
template <typename T>
struct HeadRows {
  T* data = nullptr;  // of the first row
  std::int64_t stride = 0;
  int columns = 0;
  bool vectors = false;

  __device__ HeadRows from(std::int64_t row, std::int64_t column) const {
    return {data + row * stride + column, stride, columns, vectors};
  }
};

// tile = the first `rows` rows; its other rows are zero. The caller synchronises.
template <typename Tiles, typename T>
__device__ void load_tile(HeadRows<const T> head, int rows, float* tile) {
  if (head.vectors) {
    constexpr int width = Vector<T>::size, vectors_of_row = Tiles::dims / width;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < Tiles::edge * vectors_of_row; i += threads_of_tile) {
      const int row = i / vectors_of_row, column = i % vectors_of_row * width;
      Vector<float> values[width / 4] = {};
      if (row < rows && column < head.columns) {
        const Vector<T> vector = load_vector(head.data + row * head.stride + column);
#pragma unroll
        for (int j = 0; j < width; ++j) values[j / 4][j % 4] = to_float(vector[j]);
      }
#pragma unroll
      for (int j = 0; j < width / 4; ++j) store_shared_vector(tile + row * Tiles::stride + column + 4 * j, values[j]);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < Tiles::edge * Tiles::dims; i += threads_of_tile) {
      const int row = i / Tiles::dims, column = i % Tiles::dims;
      const bool inside = row < rows && column < head.columns;
      tile[row * Tiles::stride + column] = inside ? to_float(head.data[row * head.stride + column]) : 0.0f;
    }
  }
}

// a b^T over the first `columns` columns, rounded up to 4.
template <typename Tiles>
__device__ ScorePart<Tiles> row_products(const float* a, const float* b, int columns) {
  constexpr int count = Tiles::rows_of_thread;
  ScorePart<Tiles> result;
  a += thread_y() * Tiles::stride;
  b += thread_x() * Tiles::stride;
#pragma unroll 1
  for (int column = 0; column < columns; column += 4) {
    Vector<float> of_a[count], of_b[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      of_a[i] = load_vector(a + i * threads_of_edge * Tiles::stride + column);
      of_b[i] = load_vector(b + i * threads_of_edge * Tiles::stride + column);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int j = 0; j < count; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) result.at[i][j] = fmaf(of_a[i][c], of_b[j][c], result.at[i][j]);
      }
    }
  }
  return result;
}

template <typename Tiles>
__device__ void store_scores(const ScorePart<Tiles>& part, float* scores) {
#pragma unroll
  for (int i = 0; i < Tiles::rows_of_thread; ++i) {
#pragma unroll
    for (int j = 0; j < Tiles::rows_of_thread; ++j) {
      const int row = thread_y() + i * threads_of_edge, column = thread_x() + j * threads_of_edge;
      scores[row * Tiles::score_stride + column] = part.at[i][j];
    }
  }
}

// result += scores * tile.
template <typename Tiles>
__device__ void add_product(const float* scores, const float* tile, HeadPart<Tiles>& result) {
  scores += thread_y() * Tiles::score_stride;
  tile += 4 * thread_x();
#pragma unroll 1
  for (int k = 0; k < Tiles::edge; k += 4) {
    Vector<float> factors[Tiles::rows_of_thread];
#pragma unroll
    for (int i = 0; i < Tiles::rows_of_thread; ++i) {
      factors[i] = load_vector(scores + i * threads_of_edge * Tiles::score_stride + k);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int quad = 0; quad < Tiles::quads_of_thread; ++quad) {
        const Vector<float> row = load_vector(tile + (k + c) * Tiles::stride + quad * 4 * threads_of_edge);
#pragma unroll
        for (int i = 0; i < Tiles::rows_of_thread; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) result.at[i][quad][j] = fmaf(factors[i][c], row[j], result.at[i][quad][j]);
        }
      }
    }
  }
}

// Stores the first `rows` rows of a result; row i of the thread is multiplied by factors[i].
template <typename Tiles, typename T>
__device__ void store_head(const HeadPart<Tiles>& part, const float (&factors)[Tiles::rows_of_thread], int rows,
                           HeadRows<T> head) {
#pragma unroll
  for (int i = 0; i < Tiles::rows_of_thread; ++i) {
    const int row = thread_y() + i * threads_of_edge;
    if (row >= rows) continue;
#pragma unroll
    for (int quad = 0; quad < Tiles::quads_of_thread; ++quad) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = 4 * (thread_x() + quad * threads_of_edge) + j;
        if (column < head.columns) {
          head.data[row * head.stride + column] = from_float<T>(part.at[i][quad][j] * factors[i]);
        }
      }
    }
  }
}

}  // namespace weft::cuda
