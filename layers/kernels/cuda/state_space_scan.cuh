// What the kernels of a state-space scan share: the places of a chunk's elements, and the weights of its tokens.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "layers/kernels/cuda/rounded_functions.cuh"
#include "layers/kernels/cuda/scan_tiles.cuh"
#include "layers/kernels/elementary.h"
#include "layers/kernels/gpu_scan.h"
#include "layers/kernels/state_space.h"

namespace weft::cuda {

inline constexpr int chunk_tokens = static_cast<int>(GpuScan::chunk);
inline constexpr int tiles_of_chunk = static_cast<int>(GpuScan::tiles_of_chunk);
inline constexpr int pairs_of_chunk = static_cast<int>(GpuScan::pairs_of_chunk);
// Blocks per multiprocessor, which bounds the registers of a thread.
inline constexpr int resident_scan_blocks = 4;

// Tokens of a chunk of a sequence. `number` counts the chunks of all sequences, `row` is the first token's.
struct ScanChunk {
  int number, position, count;
  std::int64_t row;

  __device__ int tiles() const { return scan_tiles(count); }
  __device__ int count_of(int tile) const { return min(tile_edge, count - tile * tile_edge); }
};

// Two tiles of a chunk of which the first reads the second.
struct TilePair {
  int reader, read;

  __device__ int number() const { return reader * (reader + 1) / 2 + read; }
  __device__ static TilePair of(int number) {
    TilePair pair = {0, number};
    while (pair.read > pair.reader) pair.read -= ++pair.reader;
    return pair;
  }
};

// The place of a block among those of a kernel, taken apart from the dimension that changes fastest.
struct BlockPlace {
  int rest = static_cast<int>(blockIdx.x);

  __device__ int take(int count) {
    const int at = rest % count;
    rest /= count;
    return at;
  }
};

// A StateSpaceShape as kernels take it, and the places of a chunk's elements in the matrices.
struct ScanSizes {
  int heads, head_dim, groups, state_size;
  int chunks, all_chunks, slices;
  int length;                    // of a sequence
  int inner, channels, columns;  // of rows of y, mixed and projected

  explicit ScanSizes(const GpuScan& scan)
      : heads(static_cast<int>(scan.shape.heads)),
        head_dim(static_cast<int>(scan.shape.head_dim)),
        groups(static_cast<int>(scan.shape.groups)),
        state_size(static_cast<int>(scan.shape.state_size)),
        chunks(static_cast<int>(scan.chunks_of_sequence())),
        all_chunks(static_cast<int>(scan.chunks())),
        slices(static_cast<int>(scan.slices())),
        length(static_cast<int>(scan.shape.sequence_length)),
        inner(static_cast<int>(scan.shape.inner())),
        channels(static_cast<int>(scan.shape.channels())),
        columns(static_cast<int>(scan.shape.columns())) {}

  __device__ int heads_of_group() const { return heads / groups; }
  __device__ int state_tiles() const { return scan_tiles(state_size); }
  __device__ ScanChunk chunk(int number) const {
    const int position = number % chunks * chunk_tokens;
    return {number, position, min(chunk_tokens, length - position),
            static_cast<std::int64_t>(number / chunks) * length + position};
  }
  __device__ std::int64_t head_number(const ScanChunk& chunk, int head) const {
    return static_cast<std::int64_t>(chunk.number) * heads + head;
  }
  // Of numbers [part][chunk][head][256].
  __device__ std::int64_t head_token(int part, const ScanChunk& chunk, int head, int token) const {
    const std::int64_t number = static_cast<std::int64_t>(part) * all_chunks * heads + head_number(chunk, head);
    return number * chunk_tokens + token;
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
  // Of numbers [slice][chunk][group][pair of tiles][64][64].
  template <typename T>
  __device__ MatrixPart<T> square(T* pairs, int slice, const ScanChunk& chunk, int group, TilePair pair) const {
    const std::int64_t of_group = (static_cast<std::int64_t>(slice) * all_chunks + chunk.number) * groups + group;
    return {pairs + (of_group * pairs_of_chunk + pair.number()) * square_elements, tile_edge, tile_edge, tile_edge};
  }
  // Of numbers [slice][chunk][group][256][element].
  __device__ MatrixPart<float> keys(float* keys, int slice, const ScanChunk& chunk, int group) const {
    const std::int64_t of_group = (static_cast<std::int64_t>(slice) * all_chunks + chunk.number) * groups + group;
    return {keys + of_group * chunk_tokens * state_size, state_size, chunk.count, state_size};
  }
};

// Of a call of a scan, for all its kernels.
template <typename T>
struct ScanInputs {
  ScanSizes sizes;
  const T *mixed, *projected, *a_log, *d, *dt_bias;
  const std::int32_t* document_begins;  // null: each sequence is one document
  bool carried;                         // whether states stand in front of the sequences
  float *step, *decay;                  // of GpuScanRoom

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
  __device__ bool reads_state(const ScanChunk& chunk, int token) const {
    return document_begin(chunk, token) < chunk.position;
  }
  // exp(decay) of a token; 0 if it does not read the state in front of the chunk.
  __device__ float of_state(const ScanChunk& chunk, int token, float token_decay) const {
    return reads_state(chunk, token) ? exponential(token_decay) : 0.0f;
  }
  // exp(last decay - decay) of a token; 0 if the state behind the chunk does not hold it.
  __device__ float unstepped(const ScanChunk& chunk, int head, int token, float token_decay) const {
    const int last = chunk.count - 1;
    const float whole = decay[sizes.head_token(0, chunk, head, last)];
    return token >= document_begin(chunk, last) - chunk.position ? exponential(whole - token_decay) : 0.0f;
  }
};

// What the steps of a head's tokens decide for a chunk. Stands in shared memory. Tokens behind the chunk have a step of
// zero.
struct ChunkSteps {
  alignas(16) float step[chunk_tokens];
  alignas(16) float decay[chunk_tokens];       // the sum of step times rate up to the token, negative or zero
  alignas(16) float of_state[chunk_tokens];    // ScanInputs::of_state
  alignas(16) float onto_state[chunk_tokens];  // ScanInputs::unstepped times the step
  int first[chunk_tokens];                     // the first token of the chunk that a token reads

  // A block of 256 threads loads them together. The caller synchronises, before if those of an earlier call are read.
  template <typename T>
  __device__ void load(const ScanInputs<T>& in, const ScanChunk& chunk, int head) {
    static_assert(chunk_tokens == threads_of_tile);
    const int token = static_cast<int>(threadIdx.x), in_chunk = min(token, chunk.count - 1);
    const std::int64_t at = in.sizes.head_token(0, chunk, head, token);
    const float own_step = in.step[at], own_decay = in.decay[at];
    step[token] = own_step;
    decay[token] = own_decay;
    of_state[token] = in.of_state(chunk, in_chunk, own_decay);
    onto_state[token] = in.unstepped(chunk, head, token, own_decay) * own_step;
    first[token] = max(in.document_begin(chunk, in_chunk) - chunk.position, 0);
  }
  // Of a token in what another reads, without the step.
  template <typename T>
  __device__ float between(int reader, int read) const {
    return read <= reader && read >= first[reader] ? rounded_exponential<T>(decay[reader] - decay[read]) : 0.0f;
  }
};

// A call of a scan: what forward and backward read, with the contracts of the public functions, and the workspace.
struct ScanCall {
  ConstTensorView mixed, projected, document_begins;
  const StateSpaceRates& rates;
  bool carried;
  GpuScan scan;
  GpuScanRoom places;
  Tensor room;
  float* first = elements<float>(room.view());

  ScanCall(KernelContext& context, const StateSpaceShape& shape, ConstTensorView x_b_c, ConstTensorView all,
           ConstTensorView begins, const StateSpaceRates& of_heads, bool is_carried, bool backward)
      : mixed(x_b_c),
        projected(all),
        document_begins(begins),
        rates(of_heads),
        carried(is_carried),
        scan{shape, mixed.rows()},
        places(scan, backward),
        room(context.workspace(DType::float32, places.floats, 1)) {}

  float* at(std::int64_t place) const { return first + place; }
  template <typename E>
  ScanInputs<typename DeviceElement<E>::type> inputs() const {
    return {ScanSizes(scan),
            elements<E>(mixed),
            elements<E>(projected),
            elements<E>(rates.a_log),
            elements<E>(rates.d),
            elements<E>(rates.dt_bias),
            document_begins.empty() ? nullptr : elements<std::int32_t>(document_begins),
            carried,
            at(places.step),
            at(places.decay)};
  }
};

// Fills the room's step, decay, keep and pairs, and the states in front of the chunks. `carried` may be null.
void begin_scan(KernelContext& context, const ScanCall& call, float* carried);
// The scan from the last token to the first: the gradients of x, in dmixed, and dstates.
void scan_back(KernelContext& context, const ScanCall& call, ConstTensorView dy, TensorView dmixed);

}  // namespace weft::cuda
