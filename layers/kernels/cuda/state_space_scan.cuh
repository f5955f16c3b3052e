// What the kernels of a state-space scan share: the place of a chunk, the weights of its tokens, and products of tiles.
// A tile holds 64 x 64 elements in float32, of 64 tokens of a chunk, columns of a head or elements of a state. What
// lies outside of a matrix is zero.
//
// A product sums over the rows of both tiles: result[i][j] = sum over k of a[k][i] b[k][j]. A factor that is summed
// over its columns is turned when its tile is filled. Thread (y, x) of 16 x 16 owns four rows of a result from 4 y, and
// four columns from 4 x.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "layers/kernels/cuda/attention_tiles.cuh"
#include "layers/kernels/cuda/exponential.cuh"
#include "layers/kernels/state_space.h"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {

inline constexpr int chunk_tokens = static_cast<int>(state_space_chunk);
inline constexpr int edge_of_part = 4;  // of a thread's part of a product
static_assert(chunk_tokens == edge_of_part * threads_of_edge);
inline constexpr int square_floats = chunk_tokens * chunk_tokens;
// Blocks per multiprocessor, which bounds the registers of a thread.
inline constexpr int resident_scan_blocks = 3;

// Tiles of 64 columns.
__host__ __device__ inline int scan_tiles(int columns) {
  return (columns + chunk_tokens - 1) / chunk_tokens;
}

// Rows and columns of a matrix, zero outside of them.
template <typename T>
struct MatrixPart {
  T* data;
  int stride, rows, columns;  // a chunk's rows are less than 2^31 elements

  __device__ float operator()(int row, int column) const {
    return row < rows && column < columns ? to_float(data[row * stride + column]) : 0.0f;
  }
  __device__ MatrixPart from(int row, int column) const {
    return {data + row * stride + column, stride, rows - row, columns - column};
  }
};

// Tokens of a chunk of a sequence. `number` counts the chunks of all sequences, `row` is the first token's.
struct ScanChunk {
  int number, position, count;
  std::int64_t row;
};

// A StateSpaceShape as kernels take it, and the places of a chunk's elements in the matrices.
struct ScanSizes {
  int heads, head_dim, groups, state_size, chunks;
  int length;                    // of a sequence
  int inner, channels, columns;  // of rows of y, mixed and projected

  explicit ScanSizes(const StateSpaceShape& shape)
      : heads(static_cast<int>(shape.heads)),
        head_dim(static_cast<int>(shape.head_dim)),
        groups(static_cast<int>(shape.groups)),
        state_size(static_cast<int>(shape.state_size)),
        chunks(static_cast<int>(shape.chunks())),
        length(static_cast<int>(shape.sequence_length)),
        inner(static_cast<int>(shape.inner())),
        channels(static_cast<int>(shape.channels())),
        columns(static_cast<int>(shape.columns())) {}

  __device__ int heads_of_group() const { return heads / groups; }
  __device__ ScanChunk chunk(int number) const {
    const int position = number % chunks * chunk_tokens;
    return {number, position, min(chunk_tokens, length - position),
            static_cast<std::int64_t>(number / chunks) * length + position};
  }
  // Of a matrix like y.
  template <typename T>
  __device__ MatrixPart<T> y(T* matrix, const ScanChunk& chunk, int head) const {
    return {matrix + chunk.row * inner + head * head_dim, inner, chunk.count, head_dim};
  }
  // Of a matrix like mixed.
  template <typename T>
  __device__ MatrixPart<T> x(T* matrix, const ScanChunk& chunk, int head) const {
    return {matrix + chunk.row * channels + head * head_dim, channels, chunk.count, head_dim};
  }
  template <typename T>
  __device__ MatrixPart<T> b(T* matrix, const ScanChunk& chunk, int group) const {
    return {matrix + chunk.row * channels + inner + group * state_size, channels, chunk.count, state_size};
  }
  template <typename T>
  __device__ MatrixPart<T> c(T* matrix, const ScanChunk& chunk, int group) const {
    return b(matrix, chunk, groups + group);
  }
  template <typename T>
  __device__ MatrixPart<T> state(T* states, const ScanChunk& chunk, int head) const {
    const std::int64_t first_row = static_cast<std::int64_t>(chunk.number) * inner + head * head_dim;
    return {states + first_row * state_size, state_size, head_dim, state_size};
  }
  // Of a matrix with 64 x 64 elements a chunk and group.
  template <typename T>
  __device__ T* square(T* matrix, const ScanChunk& chunk, int group) const {
    return matrix + (static_cast<std::int64_t>(chunk.number) * groups + group) * square_floats;
  }
};

// Of a call of a scan, for all its kernels.
template <typename T>
struct ScanInputs {
  ScanSizes sizes;
  const T *mixed, *projected, *a_log, *d, *dt_bias;
  const std::int32_t* document_begins;  // null: each sequence is one document
  bool carried;                         // whether states stand in front of the sequences

  __device__ float raw_step(const ScanChunk& chunk, int head, int token) const {
    const int column = sizes.columns - sizes.heads + head;
    return to_float(projected[(chunk.row + token) * sizes.columns + column]) + to_float(dt_bias[head]);
  }
  __device__ float rate(int head) const { return -exponential(to_float(a_log[head])); }
  // The position of the document's first token; less than any position if a state is carried.
  __device__ int document_begin(const ScanChunk& chunk, int token) const {
    if (document_begins == nullptr) return carried ? -1 : 0;
    return document_begins[chunk.row + token];
  }
};

// What the steps of a head's tokens decide. Stands in shared memory. Tokens behind the chunk have a step of zero.
struct ScanSteps {
  int first[chunk_tokens];  // the first token of the chunk that a token reads
  float step[chunk_tokens];
  float decay[chunk_tokens];       // the sum of step times rate up to the token, negative or zero
  float of_state[chunk_tokens];    // exp(decay), or 0 where a token does not read the state in front of the chunk
  float unstepped[chunk_tokens];   // exp(last decay - decay), or 0 where the state behind the chunk does not hold it
  float onto_state[chunk_tokens];  // the same times the step
  float keep;                      // of the state in front of the chunk in the one behind it

  // Of token j in what token i reads, without the step.
  __device__ float factor(int i, int j) const {
    return j <= i && j >= first[i] ? exponential(decay[i] - decay[j]) : 0.0f;
  }
};

// A block of at least 64 threads finds the steps together. Every token adds up the steps before it in the same order,
// so that no sum is larger than the one before.
template <typename T>
__device__ void find_scan_steps(const ScanInputs<T>& in, const ScanChunk& chunk, int head, ScanSteps& steps) {
  const int token = static_cast<int>(threadIdx.x), last = chunk_tokens - 1;
  const bool takes_part = token < chunk_tokens;
  bool reads_state = false;
  __syncthreads();  // an earlier call's may still be read
  if (takes_part) {
    const int begin = in.document_begin(chunk, min(token, chunk.count - 1));
    reads_state = begin < chunk.position;
    steps.first[token] = max(begin - chunk.position, 0);
    steps.step[token] = token < chunk.count ? softplus(in.raw_step(chunk, head, token)) : 0.0f;
  }
  __syncthreads();
  if (takes_part) {
    const float rate = in.rate(head);
    float sum = 0.0f;
    for (int i = 0; i <= token; ++i) sum = fmaf(steps.step[i], rate, sum);
    steps.decay[token] = sum;
  }
  __syncthreads();
  if (takes_part) {
    const float decay = steps.decay[token], whole = steps.decay[last];
    steps.of_state[token] = reads_state ? exponential(decay) : 0.0f;
    steps.unstepped[token] = token >= steps.first[last] ? exponential(whole - decay) : 0.0f;
    steps.onto_state[token] = steps.unstepped[token] * steps.step[token];
    if (token == last) steps.keep = reads_state ? exponential(whole) : 0.0f;
  }
  __syncthreads();
}

struct alignas(16) ScanTile {
  static constexpr int stride = chunk_tokens + padding;
  float at[chunk_tokens * stride];

  // at[row][column] = value(row, column), or at[column][row] if turned. Neighbouring threads take neighbouring columns,
  // of one row or of four: then the threads of a warp write to 32 banks. The caller synchronises.
  template <bool turned, typename Value>
  __device__ void fill(Value value) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_size, warp = thread / warp_size;
    const int first_row = turned ? lane / 8 : thread / chunk_tokens;
    const int column = turned ? warp * 8 + lane % 8 : thread % chunk_tokens;
#pragma unroll 4
    for (int row = first_row; row < chunk_tokens; row += threads_of_tile / chunk_tokens) {
      at[turned ? column * stride + row : row * stride + column] = value(row, column);
    }
  }
};

// A thread's part of a product.
struct ScanPart {
  float at[edge_of_part][edge_of_part] = {};

  __device__ static int row(int i) { return edge_of_part * thread_y() + i; }
  __device__ static int column(int j) { return edge_of_part * thread_x() + j; }

  // Adds the product of the first `count` rows.
  __device__ void add_product(const ScanTile& a, const ScanTile& b, int count) {
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      const Vector<float> of_a = load_vector(a.at + k * ScanTile::stride + row(0));
      const Vector<float> of_b = load_vector(b.at + k * ScanTile::stride + column(0));
#pragma unroll
      for (int i = 0; i < edge_of_part; ++i) {
#pragma unroll
        for (int j = 0; j < edge_of_part; ++j) at[i][j] = fmaf(of_a[i], of_b[j], at[i][j]);
      }
    }
  }
  // body(row, column, element) for the elements of the part.
  template <typename Body>
  __device__ void for_each(Body body) {
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) {
#pragma unroll
      for (int j = 0; j < edge_of_part; ++j) body(row(i), column(j), at[i][j]);
    }
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

// The tensors of a scan that forward and backward read, with the contracts of the public functions.
struct ScanCall {
  const StateSpaceShape& shape;
  ConstTensorView mixed, projected;
  const StateSpaceRates& rates;
  ConstTensorView document_begins;
  bool carried = false;

  std::int64_t chunks() const { return mixed.rows() / shape.sequence_length * shape.chunks(); }
  template <typename E>
  ScanInputs<typename DeviceElement<E>::type> inputs() const {
    return {ScanSizes(shape),
            elements<E>(mixed),
            elements<E>(projected),
            elements<E>(rates.a_log),
            elements<E>(rates.d),
            elements<E>(rates.dt_bias),
            document_begins.empty() ? nullptr : elements<std::int32_t>(document_begins),
            carried};
  }
};

// pairs [chunk][group][64][64] float32: row i, column j is the product of C of token i and B of token j.
void multiply_pairs(KernelContext& context, const ScanCall& call, float* pairs);
// y and the states in front of the chunks. `carried` may be null.
void scan_chunks(KernelContext& context, const ScanCall& call, const float* pairs, float* carried, float* states,
                 TensorView y);
// The same from the last token to the first: the gradients of x, in dmixed, and those of the states behind the chunks.
void scan_chunks_back(KernelContext& context, const ScanCall& call, ConstTensorView dy, const float* pairs,
                      float* dstates, TensorView dmixed);

}  // namespace weft::cuda
