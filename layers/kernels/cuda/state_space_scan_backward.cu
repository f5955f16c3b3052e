// Gradients of a state-space scan (state_space_scan.cu has the forward and the gradient of x). H is the state in front
// of a chunk, dH the gradient of the one behind it. E_ij is exp(c_i - c_j) where token i reads token j, else 0.
//   dW_ij = dy_i . x_j,  G_ij = dW_ij E_ij step_j,  t_ij = dW_ij E_ij (C_i . B_j)
//   dC_i = sum over j of G_ij B_j + of_state_i H^T dy_i,  dB_j = sum over i of G_ij C_i + onto_state_j dH^T x_j
//   dstep_j = sum over i of t_ij + unstepped_j s_j,  s_j = B_j . (dH^T x_j),  v_i = of_state_i C_i . (H^T dy_i)
//   dc_i = sum over j of t_ij step_j + v_i - step_i sum over k of t_ki - onto_state_i s_i
// and for the last token of the chunk also the sum over j of onto_state_j s_j + keep <dH, H>. dC and dB are sums over
// the heads of a group. A decay of token t is in all c_i from t on, so its gradient is the sum of dc_i over these.
//
// The states in front of the chunks are made again. States and their gradients are written, passed on (read and
// written) and read twice, in all 40 P N bytes a head's chunk. It computes 10 * 256 P N + 40 * 64^2 P operations, and
// its group those of pairs.
#include <cuda_runtime.h>

#include <cstdint>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/cuda/state_space_scan.cuh"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"

namespace weft::cuda {
namespace {

constexpr int warps_of_tile = threads_of_tile / warp_size;
// Blocks per multiprocessor where a thread keeps parts of several tiles.
constexpr int resident_gradient_blocks = 2;

// Partial sums of the tokens of heads, as GpuScanRoom has them.
struct ScanSums {
  float *of_reads, *of_weights, *of_own;  // sum over j of t_ij step_j; sum over i of t_ij; dW_ii
  float *through_c, *through_b;           // C_i . (H^T dy_i) and s_j
  float* of_states;                       // <dH, H>
};

// The heads that a block adds up.
struct HeadSlice {
  int group, slice, first, end;

  __device__ HeadSlice(const ScanSizes& sizes, BlockPlace& place)
      : group(place.take(sizes.groups)), slice(place.take(sizes.slices)) {
    const int heads = sizes.heads_of_group();
    first = group * heads + heads * slice / sizes.slices;
    end = group * heads + heads * (slice + 1) / sizes.slices;
  }
};

// The sum over a tile's rows of a thread's parts of its columns, for the first 64 threads.
__device__ float sum_of_column(const float (&parts)[edge_of_part]) {
  __shared__ float of_warp[warps_of_tile][tile_edge];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_size;
#pragma unroll
  for (int j = 0; j < edge_of_part; ++j) {
    // The other row of threads in the warp.
    const float both = parts[j] + __shfl_xor_sync(all_lanes_of_warp, parts[j], threads_of_edge);
    if (thread % warp_size < threads_of_edge) of_warp[warp][ScanPart::column(j)] = both;
  }
  __syncthreads();
  float sum = 0.0f;
  if (thread < tile_edge) {
    for (int i = 0; i < warps_of_tile; ++i) sum += of_warp[i][thread];
  }
  return sum;
}

// The gradients through a pair of tiles of tokens: sums of a head's tokens, and in dpairs those of G over a slice's
// heads.
template <typename T>
__global__ void __launch_bounds__(threads_of_tile, resident_gradient_blocks)
    pair_gradients_kernel(ScanInputs<T> in, const T* dy, const float* pairs, float* dpairs, ScanSums sums) {
  __shared__ ChunkSteps steps;
  __shared__ ScanTile<T> dy_tile, x_tile;
  const ScanSizes& sizes = in.sizes;
  BlockPlace place;
  const TilePair tiles = TilePair::of(place.take(pairs_of_chunk));
  const HeadSlice heads(sizes, place);
  const ScanChunk chunk = sizes.chunk(place.rest);
  if (tiles.reader >= chunk.tiles()) return;
  const int thread = static_cast<int>(threadIdx.x);
  const auto square = sizes.square(pairs, 0, chunk, heads.group, tiles);
  ScanPart pair, dpair;
  pair.load(square);
  for (int head = heads.first; head < heads.end; ++head) {
    const std::int64_t reads_at = sizes.head_token(tiles.read, chunk, head, tiles.reader * tile_edge);
    const std::int64_t weights_at = sizes.head_token(tiles.reader, chunk, head, tiles.read * tile_edge);
    const std::int64_t own_at = sizes.head_token(0, chunk, head, tiles.reader * tile_edge);
    const auto of_dy = sizes.y(dy, chunk, head).from(tiles.reader * tile_edge, 0);
    const auto of_x = sizes.x(in.mixed, chunk, head).from(tiles.read * tile_edge, 0);
    __syncthreads();  // the steps of the head before may still be read
    steps.load(in, chunk, head);
    ProductSum<T> sum;
    for (int column = 0; column < sizes.head_dim; column += tile_edge) {
      if (column > 0) __syncthreads();
      const auto left = dy_tile.template fill<true>(of_dy.from(0, column));
      const auto right = x_tile.template fill<true>(of_x.from(0, column));
      __syncthreads();
      sum.add(left, right, min(tile_edge, sizes.head_dim - column));
    }
    const ScanPart dweight = sum.part();
    float of_row[edge_of_part] = {}, of_column[edge_of_part] = {};
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) {
#pragma unroll
      for (int j = 0; j < edge_of_part; ++j) {
        const int row = ScanPart::row(i), column = ScanPart::column(j), read = tiles.read * tile_edge + column;
        const float unstepped = dweight.at[i][j] * steps.template between<T>(tiles.reader * tile_edge + row, read);
        const float of_log = unstepped * pair.at[i][j], step = steps.step[read];
        dpair.at[i][j] = fmaf(unstepped, step, dpair.at[i][j]);
        of_row[i] = fmaf(of_log, step, of_row[i]);
        of_column[j] += of_log;
        if (row == column && tiles.reader == tiles.read) sums.of_own[own_at + row] = dweight.at[i][j];
      }
      const float whole = reduce_lanes(of_row[i], threads_of_edge, AddTo());
      if (thread_x() == 0) sums.of_reads[reads_at + ScanPart::row(i)] = whole;
    }
    const float whole = sum_of_column(of_column);
    if (thread < tile_edge) sums.of_weights[weights_at + thread] = whole;
  }
  dpair.store(sizes.square(dpairs, heads.slice, chunk, heads.group, tiles));
}

// Gradients of C or B through the states, summed over the heads of a slice. They are products of tokens (dy or x) and
// states (H or dH), weighted by token. A block has a tile of tokens and 64 elements of their states. With `of_b` those
// of the first tile also leave <dH, H>.
template <typename T, bool of_b>
__global__ void __launch_bounds__(threads_of_tile, resident_gradient_blocks)
    key_states_kernel(ScanInputs<T> in, const T* values, const float* states, const float* dstates, float* dkeys,
                      ScanSums sums) {
  __shared__ ChunkSteps steps;
  __shared__ ScanTile<T> left, right;
  const ScanSizes& sizes = in.sizes;
  BlockPlace place;
  const int tile = place.take(tiles_of_chunk), state_tile = place.take(sizes.state_tiles());
  const HeadSlice heads(sizes, place);
  const ScanChunk chunk = sizes.chunk(place.rest);
  if (tile >= chunk.tiles()) return;
  const int begin = tile * tile_edge, element = state_tile * tile_edge;
  const auto keys = of_b ? sizes.b(in.mixed, chunk, heads.group) : sizes.c(in.mixed, chunk, heads.group);
  const float* weights = (of_b ? steps.onto_state : steps.of_state) + begin;
  ScanPart key, result;
  key.load(keys.from(begin, element));
  for (int head = heads.first; head < heads.end; ++head) {
    const auto value = of_b ? sizes.x(values, chunk, head) : sizes.y(values, chunk, head);
    const auto state = sizes.state(states, chunk, head), dstate = sizes.state(dstates, chunk, head);
    __syncthreads();  // the steps of the head before may still be read
    steps.load(in, chunk, head);
    ProductSum<T> sum;
    float product = 0.0f;
    for (int column = 0; column < sizes.head_dim; column += tile_edge) {
      if (column > 0) __syncthreads();
      const auto of_value = left.template fill<true>(value.from(begin, column));
      const auto of_state = right.template fill<false>([&](int row, int i, auto& elements) {
        (of_b ? dstate : state)(column + row, element + i, elements);
        if (!of_b || tile > 0) return;
        std::remove_reference_t<decltype(elements)> held;
        state(column + row, element + i, held);
#pragma unroll
        for (int k = 0; k < static_cast<int>(std::size(held)); ++k) product = fmaf(elements[k], held[k], product);
      });
      __syncthreads();
      sum.add(of_value, of_state, min(tile_edge, sizes.head_dim - column));
    }
    const ScanPart through = sum.part();
    const std::int64_t at = sizes.head_token(state_tile, chunk, head, begin);
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) {
      const int token = ScanPart::row(i);
      float along = 0.0f;
#pragma unroll
      for (int j = 0; j < edge_of_part; ++j) {
        along = fmaf(key.at[i][j], through.at[i][j], along);
        result.at[i][j] = fmaf(weights[token], through.at[i][j], result.at[i][j]);
      }
      along = reduce_lanes(along, threads_of_edge, AddTo());
      if (thread_x() == 0) (of_b ? sums.through_b : sums.through_c)[at + token] = along;
    }
    if constexpr (of_b) {
      if (tile == 0) {
        product = sum_of_block(product);
        if (threadIdx.x == 0) sums.of_states[at / chunk_tokens] = product;
      }
    }
  }
  result.store(sizes.keys(dkeys, heads.slice, chunk, heads.group).from(begin, element));
}

// Gradients of C or B, in dmixed: those through the states and those through pairs. A block has a tile of tokens and 64
// elements.
template <typename T, bool of_b>
__global__ void __launch_bounds__(threads_of_tile, resident_scan_blocks)
    key_gradients_kernel(ScanInputs<T> in, const float* dpairs, float* dkeys, T* dmixed) {
  __shared__ ScanTile<T> left, right;
  const ScanSizes& sizes = in.sizes;
  BlockPlace place;
  const int tile = place.take(tiles_of_chunk), element = place.take(sizes.state_tiles()) * tile_edge;
  const int group = place.take(sizes.groups), begin = tile * tile_edge;
  const ScanChunk chunk = sizes.chunk(place.rest);
  if (tile >= chunk.tiles()) return;
  const auto other = (of_b ? sizes.c(in.mixed, chunk, group) : sizes.b(in.mixed, chunk, group)).from(0, element);
  ProductSum<T> sum;
  for (int i = of_b ? tile : 0; i < (of_b ? chunk.tiles() : tile + 1); ++i) {
    const TilePair pair = of_b ? TilePair{i, tile} : TilePair{tile, i};
    const auto of_pairs = left.template fill<!of_b>([&](int reads, int is_read, auto& whole) {
      sizes.square(dpairs, 0, chunk, group, pair)(reads, is_read, whole);
      for (int slice = 1; slice < sizes.slices; ++slice) {
        std::remove_reference_t<decltype(whole)> part;
        sizes.square(dpairs, slice, chunk, group, pair)(reads, is_read, part);
#pragma unroll
        for (int k = 0; k < static_cast<int>(std::size(part)); ++k) whole[k] += part[k];
      }
    });
    const auto of_other = right.template fill<false>(other.from(i * tile_edge, 0));
    __syncthreads();
    sum.add(of_pairs, of_other, chunk.count_of(i));
    __syncthreads();
  }
  ScanPart result = sum.part();
  for (int slice = 0; slice < sizes.slices; ++slice) {
    ScanPart part;
    part.load(sizes.keys(dkeys, slice, chunk, group).from(begin, element));
    result.add(1.0f, part);
  }
  const auto gradient = of_b ? sizes.b(dmixed, chunk, group) : sizes.c(dmixed, chunk, group);
  result.store(gradient.from(begin, element));
}

// The ends of a head's gradients in a chunk: the column of its raw steps, and its parts of those of the rates. `drates`
// is [a_log, D, dt_bias][chunk][head]. A block has a chunk and head, a thread a token.
template <typename T>
__global__ void __launch_bounds__(chunk_tokens)
    step_gradients_kernel(ScanInputs<T> in, ScanSums sums, const float* keep, T* dprojected, float* drates) {
  __shared__ float of_decay[chunk_tokens];
  const ScanSizes& sizes = in.sizes;
  const int head = static_cast<int>(blockIdx.x) % sizes.heads, token = static_cast<int>(threadIdx.x);
  const ScanChunk chunk = sizes.chunk(static_cast<int>(blockIdx.x) / sizes.heads);
  const std::int64_t number = blockIdx.x, heads = gridDim.x, at = number * chunk_tokens + token;
  const int last = chunk.count - 1, tile = token / tile_edge;
  float of_reads = 0.0f, of_weight = 0.0f, through_c = 0.0f, through_b = 0.0f, of_own = 0.0f, of_states = 0.0f;
  float step = 0.0f, of_state = 0.0f, unstepped = 0.0f;
  for (int i = 0; i < sizes.state_tiles(); ++i) of_states += sums.of_states[i * heads + number];
  // Sums of tokens behind the chunk are unwritten.
  if (token <= last) {
    for (int i = 0; i <= tile; ++i) of_reads += sums.of_reads[i * heads * chunk_tokens + at];
    for (int i = tile; i < chunk.tiles(); ++i) of_weight += sums.of_weights[i * heads * chunk_tokens + at];
    for (int i = 0; i < sizes.state_tiles(); ++i) {
      through_c += sums.through_c[i * heads * chunk_tokens + at];
      through_b += sums.through_b[i * heads * chunk_tokens + at];
    }
    of_own = sums.of_own[at];
    step = in.step[at];
    of_state = in.of_state(chunk, token, in.decay[at]);
    unstepped = in.unstepped(chunk, head, token, in.decay[at]);
  }
  const float held = unstepped * step * through_b;
  const float all_held = sum_of_block(held) + keep[number] * of_states;
  of_decay[token] = of_reads + of_state * through_c - step * of_weight - held + (token == last ? all_held : 0.0f);
  __syncthreads();
  float behind = 0.0f, draw = 0.0f;
  for (int i = last; i >= token; --i) behind += of_decay[i];
  if (token <= last) {
    const float dstep = of_weight + unstepped * through_b + behind * in.rate(head);
    draw = dstep * logistic(in.raw_step(chunk, head, token));
    dprojected[(chunk.row + token) * sizes.columns + sizes.columns - sizes.heads + head] = from_float<T>(draw);
  }
  const float of_rate = sum_of_block(behind * step) * in.rate(head), of_d = sum_of_block(of_own);
  const float of_bias = sum_of_block(draw);
  if (token == 0) {
    drates[number] = of_rate;
    drates[heads + number] = of_d;
    drates[2 * heads + number] = of_bias;
  }
}

// The gradients of C or B. Both take the room's dkeys, one after the other.
template <typename T, bool of_b>
void queue_key_gradients(cudaStream_t stream, const ScanCall& call, const ScanInputs<T>& in, const T* values,
                         const ScanSums& sums, T* dmixed) {
  const GpuScanRoom& places = call.places;
  const std::int64_t tiles =
      call.scan.chunks() * call.scan.shape.groups * GpuScan::tiles_of_chunk * GpuScan::tiles(in.sizes.state_size);
  launch(stream, static_cast<unsigned>(tiles * call.scan.slices()), threads_of_tile, 0, key_states_kernel<T, of_b>, in,
         values, call.at(places.states), call.at(places.dstates), call.at(places.dkeys), sums);
  launch(stream, static_cast<unsigned>(tiles), threads_of_tile, 0, key_gradients_kernel<T, of_b>, in,
         call.at(places.dpairs), call.at(places.dkeys), dmixed);
}

}  // namespace

void scan_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dy,
                          ConstTensorView mixed, ConstTensorView projected, const StateSpaceRates& rates,
                          ConstTensorView document_begins, TensorView dmixed, TensorView dprojected,
                          const StateSpaceRateGradients& drates) {
  const ScanCall call(context, shape, mixed, projected, document_begins, rates, false, true);
  const GpuScanRoom& places = call.places;
  const cudaStream_t stream = native(context.stream);
  begin_scan(context, call, nullptr);
  scan_back(context, call, dy, dmixed);
  with_elements(dy.dtype(), [&]<typename E, typename T>() {
    const ScanInputs<T> in = call.inputs<E>();
    const ScanSums sums = {call.at(places.of_reads),  call.at(places.of_weights), call.at(places.of_own),
                           call.at(places.through_c), call.at(places.through_b),  call.at(places.of_states)};
    const std::int64_t pairs = call.scan.chunks() * shape.groups * call.scan.slices() * GpuScan::pairs_of_chunk;
    launch(stream, static_cast<unsigned>(pairs), threads_of_tile, 0, pair_gradients_kernel<T>, in, elements<E>(dy),
           call.at(places.pairs), call.at(places.dpairs), sums);
    queue_key_gradients<T, false>(stream, call, in, elements<E>(dy), sums, elements<E>(dmixed));
    queue_key_gradients<T, true>(stream, call, in, in.mixed, sums, elements<E>(dmixed));
    launch(stream, static_cast<unsigned>(call.scan.chunk_heads()), chunk_tokens, 0, step_gradients_kernel<T>, in, sums,
           call.at(places.keep), elements<E>(dprojected), call.at(places.drates));
  });
  const float* part = call.at(places.drates);
  for (const TensorView gradient : {drates.a_log, drates.d, drates.dt_bias}) {
    column_sums(stream, part, call.scan.chunks(), shape.heads, elements<float>(gradient));
    part += call.scan.chunk_heads();
  }
}

}  // namespace weft::cuda
