// The scan of a state-space mixer, chunk by chunk of a sequence (the "SSD" form of Dao and Gu 2024, section 6). Within
// a chunk let c_i be the sum of step times decay rate up to token i. Token i reads token j <= i of its document with
// the weight (C_i . B_j) exp(c_i - c_j) step_j, and the state in front of the chunk with exp(c_i). All exponents are
// negative or zero.
//
// The gradient of x is the same scan from the last token to the first. It has dy in the place of x and C in the place
// of B, and its weights are turned. Gradients of states behind chunks stand for states in front of them.
//
// With P columns of a head, N elements of a state and s bytes an element, a head's chunk of 64 tokens moves:
// - 4 * 4 P N bytes of states: they are written, passed on (read and written) and read;
// - 3 * 64 P s bytes of x and y, and what its group shares, B, C and pairs, from the second-level cache.
// It computes 4 * 64 P N + 2 * 64^2 P operations in float32. With P = 64, N = 128 and s = 2 that is 17 a byte, where an
// H100 could do 20.
#include <cuda_runtime.h>

#include <cstdint>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/cuda/state_space_scan.cuh"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/element_type.h"

namespace weft::cuda {
namespace {

constexpr int pass_threads = 256;
// Chunks whose states a thread loads before it stores the first one.
constexpr int chunks_in_flight = 4;

// A block's columns of a head in a chunk.
struct HeadTile {
  ScanChunk chunk;
  int head, group, column;
};
__device__ HeadTile head_tile(const ScanSizes& sizes) {
  const int block = static_cast<int>(blockIdx.x), tiles = scan_tiles(sizes.head_dim);
  const int head = block / tiles % sizes.heads;
  return {sizes.chunk(block / tiles / sizes.heads), head, head / sizes.heads_of_group(), block % tiles * chunk_tokens};
}
dim3 head_tile_blocks(const ScanCall& call) {
  const int tiles = scan_tiles(static_cast<int>(call.shape.head_dim));
  return dim3(static_cast<unsigned>(call.chunks() * call.shape.heads * tiles));
}

// A block computes the pairs of one chunk and group.
template <typename T>
__global__ void __launch_bounds__(threads_of_tile, resident_scan_blocks) pairs_kernel(ScanInputs<T> in, float* pairs) {
  __shared__ ScanTile c_tile, b_tile;
  const ScanSizes& sizes = in.sizes;
  const int group = static_cast<int>(blockIdx.x) % sizes.groups;
  const ScanChunk chunk = sizes.chunk(static_cast<int>(blockIdx.x) / sizes.groups);
  const MatrixPart<const T> b = sizes.b(in.mixed, chunk, group), c = sizes.c(in.mixed, chunk, group);
  ScanPart result;
  for (int column = 0; column < sizes.state_size; column += chunk_tokens) {
    c_tile.fill<true>(c.from(0, column));
    b_tile.fill<true>(b.from(0, column));
    __syncthreads();
    result.add_product(c_tile, b_tile, min(chunk_tokens, sizes.state_size - column));
    __syncthreads();
  }
  result.store(MatrixPart<float>{sizes.square(pairs, chunk, group), chunk_tokens, chunk_tokens, chunk_tokens});
}

// What a chunk adds to states [chunk][head][column][element]. Forward it adds the sum over tokens j of onto_state_j x_j
// B_j^T to the state behind it. Backward it adds that of of_state_i dy_i C_i^T to the gradient of the state in front of
// it. keep [chunk][head]. A block computes 64 columns of a head.
template <typename T, bool backward>
__global__ void __launch_bounds__(threads_of_tile, resident_scan_blocks)
    chunk_states_kernel(ScanInputs<T> in, const T* values, float* states, float* keep) {
  __shared__ ScanSteps steps;
  __shared__ ScanTile value_tile, key_tile;
  const ScanSizes& sizes = in.sizes;
  const HeadTile at = head_tile(sizes);
  const MatrixPart<const T> value = backward ? sizes.y(values, at.chunk, at.head) : sizes.x(values, at.chunk, at.head);
  const MatrixPart<const T> key =
      backward ? sizes.c(in.mixed, at.chunk, at.group) : sizes.b(in.mixed, at.chunk, at.group);
  const MatrixPart<float> state = sizes.state(states, at.chunk, at.head).from(at.column, 0);
  find_scan_steps(in, at.chunk, at.head, steps);
  if (threadIdx.x == 0 && at.column == 0) keep[at.chunk.number * sizes.heads + at.head] = steps.keep;

  const float* weights = backward ? steps.of_state : steps.onto_state;
  value_tile.fill<false>([=](int token, int column) { return weights[token] * value(token, at.column + column); });
  for (int element = 0; element < sizes.state_size; element += chunk_tokens) {
    key_tile.fill<false>(key.from(0, element));
    __syncthreads();
    ScanPart result;
    result.add_product(value_tile, key_tile, at.chunk.count);
    result.store(state.from(0, element));
    __syncthreads();
  }
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
// behind the chunk. Both: D times the token's own. A block computes 64 columns of a head.
template <typename T, bool backward>
__global__ void __launch_bounds__(threads_of_tile, resident_scan_blocks)
    chunk_outputs_kernel(ScanInputs<T> in, const T* values, const float* pairs, const float* states, T* out) {
  __shared__ ScanSteps steps;
  __shared__ ScanTile left, right;
  const ScanSizes& sizes = in.sizes;
  const HeadTile at = head_tile(sizes);
  const MatrixPart<const T> value = backward ? sizes.y(values, at.chunk, at.head) : sizes.x(values, at.chunk, at.head);
  const MatrixPart<const T> key =
      backward ? sizes.b(in.mixed, at.chunk, at.group) : sizes.c(in.mixed, at.chunk, at.group);
  const MatrixPart<const float> state = sizes.state(states, at.chunk, at.head).from(at.column, 0);
  const MatrixPart<T> result = backward ? sizes.x(out, at.chunk, at.head) : sizes.y(out, at.chunk, at.head);
  find_scan_steps(in, at.chunk, at.head, steps);

  const float* pair = sizes.square(pairs, at.chunk, at.group);
  left.fill<!backward>([=](int i, int j) { return pair[i * chunk_tokens + j] * steps.factor(i, j) * steps.step[j]; });
  right.fill<false>(value.from(0, at.column));
  __syncthreads();
  ScanPart sums;
  sums.add_product(left, right, at.chunk.count);
  const float d = to_float(in.d[at.head]);
  sums.for_each(
      [=](int row, int column, float& sum) { sum = fmaf(d, right.at[row * ScanTile::stride + column], sum); });
  const float* weights = backward ? steps.onto_state : steps.of_state;
  for (int element = 0; element < sizes.state_size; element += chunk_tokens) {
    __syncthreads();
    left.fill<true>([=](int token, int i) { return weights[token] * key(token, element + i); });
    right.fill<true>(state.from(0, element));
    __syncthreads();
    sums.add_product(left, right, min(chunk_tokens, sizes.state_size - element));
  }
  sums.store(result.from(0, at.column));
}

// `states` become those of the chunks; `carried` may be null.
template <typename T, bool backward>
void queue_chunks(KernelContext& context, const ScanCall& call, const ScanInputs<T>& in, const T* values,
                  const float* pairs, float* carried, float* states, T* out) {
  const cudaStream_t stream = native(context.stream);
  const std::int64_t sequences = call.mixed.rows() / call.shape.sequence_length;
  Tensor keep =
      context.ledger.allocate_on(context.stream, Bucket::workspace, DType::float32, call.chunks(), call.shape.heads);
  float* const kept = elements<float>(keep.view());
  launch(stream, head_tile_blocks(call), threads_of_tile, 0, chunk_states_kernel<T, backward>, in, values, states,
         kept);
  const std::int64_t elements = sequences * call.shape.inner() * call.shape.state_size;
  launch(stream, blocks_for(elements, pass_threads), pass_threads, 0, pass_states_kernel<backward>, in.sizes, elements,
         kept, carried, states);
  launch(stream, head_tile_blocks(call), threads_of_tile, 0, chunk_outputs_kernel<T, backward>, in, values, pairs,
         states, out);
}

}  // namespace

void multiply_pairs(KernelContext& context, const ScanCall& call, float* pairs) {
  with_element_type(call.mixed.dtype(), [&](auto element) {
    using E = decltype(element);
    launch(native(context.stream), static_cast<unsigned>(call.chunks() * call.shape.groups), threads_of_tile, 0,
           pairs_kernel<typename DeviceElement<E>::type>, call.inputs<E>(), pairs);
  });
}

void scan_chunks(KernelContext& context, const ScanCall& call, const float* pairs, float* carried, float* states,
                 TensorView y) {
  with_element_type(y.dtype(), [&](auto element) {
    using E = decltype(element);
    queue_chunks<typename DeviceElement<E>::type, false>(context, call, call.inputs<E>(), elements<E>(call.mixed),
                                                         pairs, carried, states, elements<E>(y));
  });
}

void scan_chunks_back(KernelContext& context, const ScanCall& call, ConstTensorView dy, const float* pairs,
                      float* dstates, TensorView dmixed) {
  with_element_type(dy.dtype(), [&](auto element) {
    using E = decltype(element);
    queue_chunks<typename DeviceElement<E>::type, true>(context, call, call.inputs<E>(), elements<E>(dy), pairs,
                                                        nullptr, dstates, elements<E>(dmixed));
  });
}

void scan_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView mixed,
                         ConstTensorView projected, const StateSpaceRates& rates, ConstTensorView document_begins,
                         TensorView carried, TensorView states, TensorView y) {
  const ScanCall call = {shape, mixed, projected, rates, document_begins, !carried.empty()};
  Tensor pairs = context.ledger.allocate_on(context.stream, Bucket::workspace, DType::float32,
                                            call.chunks() * shape.groups, square_floats);
  float* const products = elements<float>(pairs.view());
  multiply_pairs(context, call, products);
  scan_chunks(context, call, products, carried.empty() ? nullptr : elements<float>(carried), elements<float>(states),
              y);
}

}  // namespace weft::cuda
