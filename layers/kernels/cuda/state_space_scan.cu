// The scan of a state-space mixer, chunk by chunk of a sequence (the "SSD" form of Dao and Gu 2024, section 6). Within
// a chunk let c_i be the sum of step times decay rate up to token i. Token i reads token j <= i of its document with
// the weight (C_i . B_j) exp(c_i - c_j) step_j, and the state in front of the chunk with exp(c_i). All exponents are
// negative or zero.
//
// The gradient of x is the same scan from the last token to the first. It has dy in the place of x and C in the place
// of B, and its weights are turned. Gradients of states behind chunks stand for states in front of them.
//
// With P columns of a head, N elements of a state and s bytes an element, a head's chunk of 256 tokens moves:
// - 4 * 4 P N bytes of states: they are written, passed on (read and written) and read;
// - 2 * 256 P s bytes of x and y, and from the second-level cache B, C and pairs, which its group shares.
// It computes 4 * 256 P N + 20 * 64^2 P operations, as tokens read no tile behind them. With P = 64, N = 128 and s = 2
// that is 70 a byte, for tensor cores.
#include <cuda_runtime.h>

#include <cstdint>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/cuda/state_space_scan.cuh"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"

namespace weft::cuda {
namespace {

constexpr int pass_threads = 256, heads_of_steps = 16;
// Chunks whose states a thread loads before it stores the first one.
constexpr int chunks_in_flight = 4;

__host__ __device__ int blocks_of_heads(int heads) {
  return (heads + heads_of_steps - 1) / heads_of_steps;
}

// A block has a chunk and some heads. A thread has a token, and then one goes through the tokens of each head, so that
// no sum is larger than the one before.
template <typename T>
__global__ void __launch_bounds__(chunk_tokens) steps_kernel(ScanInputs<T> in, float* keep) {
  __shared__ float sums[heads_of_steps][chunk_tokens + 1];  // heads begin in different banks
  const ScanSizes& sizes = in.sizes;
  BlockPlace place;
  const int first_head = place.take(blocks_of_heads(sizes.heads)) * heads_of_steps;
  const int heads = min(heads_of_steps, sizes.heads - first_head), thread = static_cast<int>(threadIdx.x);
  const ScanChunk chunk = sizes.chunk(place.rest);
  float step[heads_of_steps];
#pragma unroll
  for (int i = 0; i < heads_of_steps; ++i) {
    const bool there = i < heads && thread < chunk.count;
    sums[i][thread] = step[i] = there ? softplus(in.raw_step(chunk, first_head + i, thread)) : 0.0f;
  }
  __syncthreads();
  if (thread < heads) {
    const float rate = in.rate(first_head + thread);
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < chunk_tokens; ++i) sums[thread][i] = sum = fmaf(sums[thread][i], rate, sum);
    keep[sizes.head_number(chunk, first_head + thread)] =
        in.reads_state(chunk, chunk.count - 1) ? exponential(sum) : 0.0f;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < heads_of_steps; ++i) {
    if (i >= heads) continue;
    const std::int64_t at = sizes.head_token(0, chunk, first_head + i, thread);
    in.step[at] = step[i];
    in.decay[at] = sums[i][thread];
  }
}

// A block computes one pair of tiles of a chunk and group.
template <typename T>
__global__ void __launch_bounds__(threads_of_tile, resident_scan_blocks) pairs_kernel(ScanInputs<T> in, float* pairs) {
  __shared__ ScanTile<T> c_tile, b_tile;
  const ScanSizes& sizes = in.sizes;
  BlockPlace place;
  const TilePair pair = TilePair::of(place.take(pairs_of_chunk));
  const int group = place.take(sizes.groups);
  const ScanChunk chunk = sizes.chunk(place.rest);
  if (pair.reader >= chunk.tiles()) return;
  const auto c = sizes.c(in.mixed, chunk, group).from(pair.reader * tile_edge, 0);
  const auto b = sizes.b(in.mixed, chunk, group).from(pair.read * tile_edge, 0);
  ProductSum<T> sum;
  for (int element = 0; element < sizes.state_size; element += tile_edge) {
    const auto of_c = c_tile.template fill<true>(c.from(0, element));
    const auto of_b = b_tile.template fill<true>(b.from(0, element));
    __syncthreads();
    sum.add(of_c, of_b, min(tile_edge, sizes.state_size - element));
    __syncthreads();
  }
  sum.part().store(sizes.square(pairs, 0, chunk, group, pair));
}

// What a chunk adds to states [chunk][head][column][element]. Forward it adds the sum over tokens j of onto_state_j x_j
// B_j^T to the state behind it. Backward it adds that of of_state_i dy_i C_i^T to the gradient of the state in front of
// it. A block computes 64 columns and elements of a head.
template <typename T, bool backward>
__global__ void __launch_bounds__(threads_of_tile, resident_scan_blocks)
    chunk_states_kernel(ScanInputs<T> in, const T* values, float* states) {
  __shared__ ChunkSteps steps;
  __shared__ ScanTile<T> value_tile, key_tile;
  const ScanSizes& sizes = in.sizes;
  BlockPlace place;
  const int element = place.take(sizes.state_tiles()) * tile_edge;
  const int column = place.take(scan_tiles(sizes.head_dim)) * tile_edge, head = place.take(sizes.heads);
  const int group = head / sizes.heads_of_group();
  const ScanChunk chunk = sizes.chunk(place.rest);
  const auto value = (backward ? sizes.y(values, chunk, head) : sizes.x(values, chunk, head)).from(0, column);
  const auto key = (backward ? sizes.c(in.mixed, chunk, group) : sizes.b(in.mixed, chunk, group)).from(0, element);
  const float* weights = backward ? steps.of_state : steps.onto_state;
  steps.load(in, chunk, head);
  __syncthreads();
  ProductSum<T> sum;
  for (int tile = 0; tile < chunk.tiles(); ++tile) {
    const int first = tile * tile_edge;
    const auto of_value = value_tile.template fill<false>([=](int token, int i, auto& elements) {
      value(first + token, i, elements);
      for (float& at : elements) at *= weights[first + token];
    });
    const auto of_key = key_tile.template fill<false>(key.from(first, 0));
    __syncthreads();
    sum.add(of_value, of_key, chunk.count_of(tile));
    __syncthreads();
  }
  sum.part().store(sizes.state(states, chunk, head).from(column, element));
}

// Turns what chunks add into the states in front of them, or backward into the gradients of the states behind them.
// From chunk to chunk the state is multiplied by the chunk's keep, and what the chunk adds is added. A thread has one
// element of a state of a sequence, from chunk to chunk. `carried` [sequence][head][column][element] is the first state
// and becomes the last one; null: zero.
template <bool backward>
__global__ void __launch_bounds__(pass_threads)
    pass_states_kernel(ScanSizes sizes, std::int64_t elements, const float* keep, float* carried, float* states) {
  const std::int64_t element = static_cast<std::int64_t>(blockIdx.x) * pass_threads + threadIdx.x;
  if (element >= elements) return;
  const std::int64_t of_head = static_cast<std::int64_t>(sizes.head_dim) * sizes.state_size;
  const std::int64_t of_chunk = sizes.heads * of_head, place = element % of_chunk;
  const std::int64_t first_chunk = element / of_chunk * sizes.chunks;
  float state = carried == nullptr ? 0.0f : carried[element];
  for (int first = 0; first < sizes.chunks; first += chunks_in_flight) {
    float added[chunks_in_flight], kept[chunks_in_flight];
    const auto chunk_at = [&](int i) { return first_chunk + (backward ? sizes.chunks - 1 - (first + i) : first + i); };
#pragma unroll
    for (int i = 0; i < chunks_in_flight; ++i) {
      if (first + i >= sizes.chunks) continue;
      added[i] = states[chunk_at(i) * of_chunk + place];
      kept[i] = keep[chunk_at(i) * sizes.heads + place / of_head];
    }
#pragma unroll
    for (int i = 0; i < chunks_in_flight; ++i) {
      if (first + i >= sizes.chunks) continue;
      states[chunk_at(i) * of_chunk + place] = state;
      state = fmaf(kept[i], state, added[i]);
    }
  }
  if (carried != nullptr) carried[element] = state;
}

// Forward: y of a chunk, from its x and the state in front of it. Backward: dx, from dy and the gradient of the state
// behind the chunk. Both: D times the token's own. A block computes a tile of tokens and 64 columns of a head.
template <typename T, bool backward>
__global__ void __launch_bounds__(threads_of_tile, resident_scan_blocks)
    chunk_outputs_kernel(ScanInputs<T> in, const T* values, const float* pairs, const float* states, T* out) {
  __shared__ ChunkSteps steps;
  __shared__ ScanTile<T> left, right;
  const ScanSizes& sizes = in.sizes;
  BlockPlace place;
  const int tile = place.take(tiles_of_chunk), column = place.take(scan_tiles(sizes.head_dim)) * tile_edge;
  const int head = place.take(sizes.heads), group = head / sizes.heads_of_group(), begin = tile * tile_edge;
  const ScanChunk chunk = sizes.chunk(place.rest);
  if (tile >= chunk.tiles()) return;
  const auto value = (backward ? sizes.y(values, chunk, head) : sizes.x(values, chunk, head)).from(0, column);
  const auto key = (backward ? sizes.b(in.mixed, chunk, group) : sizes.c(in.mixed, chunk, group)).from(begin, 0);
  const auto state = sizes.state(states, chunk, head).from(column, 0);
  steps.load(in, chunk, head);
  __syncthreads();

  ProductSum<T> sum;
  for (int i = backward ? tile : 0; i < (backward ? chunk.tiles() : tile + 1); ++i) {
    const TilePair tiles = backward ? TilePair{i, tile} : TilePair{tile, i};
    const auto pair = sizes.square(pairs, 0, chunk, group, tiles);
    const auto weights = left.template fill<!backward>([&](int reads, int is_read, auto& elements) {
      pair(reads, is_read, elements);
      const int reader = tiles.reader * tile_edge + reads, read = tiles.read * tile_edge + is_read;
#pragma unroll
      for (int k = 0; k < static_cast<int>(std::size(elements)); ++k) {
        elements[k] *= steps.template between<T>(reader, read + k) * steps.step[read + k];
      }
    });
    const auto of_value = right.template fill<false>(value.from(i * tile_edge, 0));
    __syncthreads();
    sum.add(weights, of_value, chunk.count_of(i));
    __syncthreads();
  }
  const float* of_state = (backward ? steps.onto_state : steps.of_state) + begin;
  for (int element = 0; element < sizes.state_size; element += tile_edge) {
    const auto of_key = left.template fill<true>([=](int token, int i, auto& elements) {
      key(token, element + i, elements);
      for (float& at : elements) at *= of_state[token];
    });
    const auto through = right.template fill<true>(state.from(0, element));
    __syncthreads();
    sum.add(of_key, through, min(tile_edge, sizes.state_size - element));
    __syncthreads();
  }
  const float d = to_float(in.d[head]);
  ScanPart result = sum.part(), own;
  own.load(value.from(begin, 0));
  result.add(d, own);
  result.store((backward ? sizes.x(out, chunk, head) : sizes.y(out, chunk, head)).from(begin, column));
}

// States in front of the chunks, or gradients of those behind them; `carried` may be null.
template <typename T, bool backward>
void queue_states(KernelContext& context, const ScanCall& call, const ScanInputs<T>& in, const T* values,
                  float* carried, float* states) {
  const cudaStream_t stream = native(context.stream);
  const std::int64_t tiles = GpuScan::tiles(call.scan.shape.head_dim) * GpuScan::tiles(call.scan.shape.state_size);
  launch(stream, static_cast<unsigned>(call.scan.chunk_heads() * tiles), threads_of_tile, 0,
         chunk_states_kernel<T, backward>, in, values, states);
  const std::int64_t elements = call.scan.sequences() * call.scan.shape.inner() * call.scan.shape.state_size;
  launch(stream, blocks_for(elements, pass_threads), pass_threads, 0, pass_states_kernel<backward>, in.sizes, elements,
         call.at(call.places.keep), carried, states);
}
template <typename T, bool backward>
void queue_outputs(KernelContext& context, const ScanCall& call, const ScanInputs<T>& in, const T* values,
                   const float* states, T* out) {
  const std::int64_t tiles = GpuScan::tiles_of_chunk * GpuScan::tiles(call.scan.shape.head_dim);
  launch(native(context.stream), static_cast<unsigned>(call.scan.chunk_heads() * tiles), threads_of_tile, 0,
         chunk_outputs_kernel<T, backward>, in, values, call.at(call.places.pairs), states, out);
}

}  // namespace

void begin_scan(KernelContext& context, const ScanCall& call, float* carried) {
  with_elements(call.mixed.dtype(), [&]<typename E, typename T>() {
    const cudaStream_t stream = native(context.stream);
    const ScanInputs<T> in = call.inputs<E>();
    launch(stream, static_cast<unsigned>(call.scan.chunks() * blocks_of_heads(in.sizes.heads)), chunk_tokens, 0,
           steps_kernel<T>, in, call.at(call.places.keep));
    launch(stream, static_cast<unsigned>(call.scan.chunks() * call.scan.shape.groups * GpuScan::pairs_of_chunk),
           threads_of_tile, 0, pairs_kernel<T>, in, call.at(call.places.pairs));
    queue_states<T, false>(context, call, in, in.mixed, carried, call.at(call.places.states));
  });
}

void scan_back(KernelContext& context, const ScanCall& call, ConstTensorView dy, TensorView dmixed) {
  with_elements(dy.dtype(), [&]<typename E, typename T>() {
    const ScanInputs<T> in = call.inputs<E>();
    float* const dstates = call.at(call.places.dstates);
    queue_states<T, true>(context, call, in, elements<E>(dy), nullptr, dstates);
    queue_outputs<T, true>(context, call, in, elements<E>(dy), dstates, elements<E>(dmixed));
  });
}

void scan_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView mixed,
                         ConstTensorView projected, const StateSpaceRates& rates, ConstTensorView document_begins,
                         TensorView carried, TensorView y) {
  const ScanCall call(context, shape, mixed, projected, document_begins, rates, !carried.empty(), false);
  begin_scan(context, call, carried.empty() ? nullptr : elements<float>(carried));
  with_elements(y.dtype(), [&]<typename E, typename T>() {
    const ScanInputs<T> in = call.inputs<E>();
    queue_outputs<T, false>(context, call, in, in.mixed, call.at(call.places.states), elements<E>(y));
  });
}

}  // namespace weft::cuda
