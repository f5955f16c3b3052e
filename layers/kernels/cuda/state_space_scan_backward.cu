// Gradients of a state-space scan (state_space_scan.cu has the forward and the gradient of x), and the table of the
// mixer's kernels. H is the state in front of a chunk, dH the gradient of the one behind it. E_ij is exp(c_i - c_j)
// where token i reads token j, else 0.
//   dW_ij = dy_i . x_j,  G_ij = dW_ij E_ij step_j,  t_ij = dW_ij E_ij (C_i . B_j)
//   dC_i = sum over j of G_ij B_j + of_state_i H^T dy_i,  dB_j = sum over i of G_ij C_i + onto_state_j dH^T x_j
//   dstep_j = sum over i of t_ij + unstepped_j s_j,  s_j = B_j . (dH^T x_j),  v_i = of_state_i C_i . (H^T dy_i)
//   dc_i = sum over j of t_ij step_j + v_i - step_i sum over k of t_ki - onto_state_i s_i
// and for the last token of the chunk also the sum over j of onto_state_j s_j + keep <dH, H>. dC and dB are sums over
// the heads of a group. A decay of token t is in all c_i from t on, so its gradient is the sum of dc_i over these.
//
// A head's chunk takes 2 * 64^2 P + 4 * 64 P N operations here, and as many as a forward for the gradient of x.
// It reads states and their gradients once, the states a second time for <dH, H>: 12 P N bytes.
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/cuda/state_space_scan.cuh"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/element_type.h"

namespace weft::cuda {
namespace {

constexpr int warps_of_tile = threads_of_tile / warp_size;

// Partial gradients of a backward, float32. Of the 64 tokens of a [chunk][head] or a [tile of states][chunk][head]:
struct ScanSums {
  float *of_reads, *of_weights, *of_own;  // sum over j of t_ij step_j; sum over i of t_ij; dW_ii
  float *through_c, *through_b;           // C_i . (H^T dy_i) and s_j, of the elements of a tile
  float* of_states;                       // <dH, H> of [tile of states][chunk][head]
};

__device__ std::int64_t head_number(const ScanSizes& sizes, const ScanChunk& chunk, int head) {
  return static_cast<std::int64_t>(chunk.number) * sizes.heads + head;
}

// The sum over a tile's rows of a thread's parts of its columns, for the first 64 threads.
__device__ float sum_of_column(const float (&parts)[edge_of_part]) {
  __shared__ float of_warp[warps_of_tile][chunk_tokens];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_size;
#pragma unroll
  for (int j = 0; j < edge_of_part; ++j) {
    // The other row of threads in the warp.
    const float both = parts[j] + __shfl_xor_sync(all_lanes_of_warp, parts[j], threads_of_edge);
    if (thread % warp_size < threads_of_edge) of_warp[warp][ScanPart::column(j)] = both;
  }
  __syncthreads();
  float sum = 0.0f;
  if (thread < chunk_tokens) {
    for (int i = 0; i < warps_of_tile; ++i) sum += of_warp[i][thread];
  }
  return sum;
}

// The gradients through pairs of tokens: sums of a head's tokens, and dpairs [chunk][group][64][64], the sum of G over
// the heads of a group. A block has one chunk and group.
template <typename T>
__global__ void __launch_bounds__(threads_of_tile, 2)
    pair_gradients_kernel(ScanInputs<T> in, const T* dy, const float* pairs, float* dpairs, ScanSums sums) {
  __shared__ ScanSteps steps;
  __shared__ ScanTile dy_tile, x_tile;
  const ScanSizes& sizes = in.sizes;
  const int group = static_cast<int>(blockIdx.x) % sizes.groups, thread = static_cast<int>(threadIdx.x);
  const ScanChunk chunk = sizes.chunk(static_cast<int>(blockIdx.x) / sizes.groups);
  const MatrixPart<const float> square = {sizes.square(pairs, chunk, group), chunk_tokens, chunk_tokens, chunk_tokens};
  ScanPart pair, dpair;
  pair.for_each([=](int i, int j, float& element) { element = square(i, j); });
  for (int in_group = 0; in_group < sizes.heads_of_group(); ++in_group) {
    const int head = group * sizes.heads_of_group() + in_group;
    const std::int64_t first = head_number(sizes, chunk, head) * chunk_tokens;
    const MatrixPart<const T> of_dy = sizes.y(dy, chunk, head), of_x = sizes.x(in.mixed, chunk, head);
    find_scan_steps(in, chunk, head, steps);
    ScanPart dweight;
    for (int column = 0; column < sizes.head_dim; column += chunk_tokens) {
      dy_tile.fill<true>(of_dy.from(0, column));
      x_tile.fill<true>(of_x.from(0, column));
      __syncthreads();
      dweight.add_product(dy_tile, x_tile, min(chunk_tokens, sizes.head_dim - column));
      __syncthreads();
    }
    float of_row[edge_of_part] = {}, of_column[edge_of_part] = {};
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) {
#pragma unroll
      for (int j = 0; j < edge_of_part; ++j) {
        const int row = ScanPart::row(i), column = ScanPart::column(j);
        const float unstepped = dweight.at[i][j] * steps.factor(row, column), step = steps.step[column];
        const float of_log = unstepped * pair.at[i][j];
        dpair.at[i][j] = fmaf(unstepped, step, dpair.at[i][j]);
        of_row[i] = fmaf(of_log, step, of_row[i]);
        of_column[j] += of_log;
        if (row == column) sums.of_own[first + row] = dweight.at[i][j];
      }
      const float sum = reduce_row(of_row[i], AddTo());
      if (thread_x() == 0) sums.of_reads[first + ScanPart::row(i)] = sum;
    }
    const float sum = sum_of_column(of_column);
    if (thread < chunk_tokens) sums.of_weights[first + thread] = sum;
  }
  dpair.store(MatrixPart<float>{sizes.square(dpairs, chunk, group), chunk_tokens, chunk_tokens, chunk_tokens});
}

// Gradients of C or B, in dmixed: those through the states, summed over the heads of a group, and those through pairs.
// The former are the products of tokens (dy or x) and states (H or dH), weighted by token. A block has 64 elements of a
// group's states in a chunk. With `of_b` it also leaves its part of <dH, H>.
template <typename T, bool of_b>
__global__ void __launch_bounds__(threads_of_tile, resident_scan_blocks)
    key_gradients_kernel(ScanInputs<T> in, const T* values, const float* states, const float* dstates,
                         const float* dpairs, T* dmixed, ScanSums sums) {
  __shared__ ScanSteps steps;
  __shared__ ScanTile left, right;
  const ScanSizes& sizes = in.sizes;
  const int tiles = scan_tiles(sizes.state_size), block = static_cast<int>(blockIdx.x);
  const int tile = block % tiles, group = block / tiles % sizes.groups, element = tile * chunk_tokens;
  const ScanChunk chunk = sizes.chunk(block / tiles / sizes.groups);
  const std::int64_t heads = static_cast<std::int64_t>(gridDim.x) / tiles / sizes.groups * sizes.heads;
  const auto b = sizes.b(in.mixed, chunk, group).from(0, element);
  const auto c = sizes.c(in.mixed, chunk, group).from(0, element);
  const float* weights = of_b ? steps.onto_state : steps.of_state;
  ScanPart key, result;
  key.for_each([&](int token, int i, float& at) { at = of_b ? b(token, i) : c(token, i); });
  for (int in_group = 0; in_group < sizes.heads_of_group(); ++in_group) {
    const int head = group * sizes.heads_of_group() + in_group;
    const MatrixPart<const T> value = of_b ? sizes.x(values, chunk, head) : sizes.y(values, chunk, head);
    const auto state = sizes.state(states, chunk, head), dstate = sizes.state(dstates, chunk, head);
    find_scan_steps(in, chunk, head, steps);
    ScanPart through;
    float product = 0.0f;
    for (int column = 0; column < sizes.head_dim; column += chunk_tokens) {
      left.fill<true>(value.from(0, column));
      right.fill<false>([&](int row, int i) {
        if constexpr (!of_b) return state(column + row, element + i);
        const float gradient = dstate(column + row, element + i);
        product = fmaf(gradient, state(column + row, element + i), product);
        return gradient;
      });
      __syncthreads();
      through.add_product(left, right, min(chunk_tokens, sizes.head_dim - column));
      __syncthreads();
    }
    const std::int64_t number = tile * heads + head_number(sizes, chunk, head);
#pragma unroll
    for (int i = 0; i < edge_of_part; ++i) {
      const int token = ScanPart::row(i);
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < edge_of_part; ++j) {
        sum = fmaf(key.at[i][j], through.at[i][j], sum);
        result.at[i][j] = fmaf(weights[token], through.at[i][j], result.at[i][j]);
      }
      sum = reduce_row(sum, AddTo());
      if (thread_x() == 0) (of_b ? sums.through_b : sums.through_c)[number * chunk_tokens + token] = sum;
    }
    if constexpr (of_b) {
      product = sum_of_block(product);
      if (threadIdx.x == 0) sums.of_states[number] = product;
    }
  }
  const MatrixPart<const float> dpair = {sizes.square(dpairs, chunk, group), chunk_tokens, chunk_tokens, chunk_tokens};
  left.fill<!of_b>(dpair);
  if constexpr (of_b) {
    right.fill<false>(c);
  } else {
    right.fill<false>(b);
  }
  __syncthreads();
  result.add_product(left, right, chunk.count);
  result.store((of_b ? sizes.b(dmixed, chunk, group) : sizes.c(dmixed, chunk, group)).from(0, element));
}

// The ends of a head's gradients in a chunk: the column of its raw steps, and its parts of those of the rates. `drates`
// is [a_log, D, dt_bias][chunk][head]. A block has a chunk and head, a thread a token.
template <typename T>
__global__ void __launch_bounds__(chunk_tokens)
    step_gradients_kernel(ScanInputs<T> in, ScanSums sums, T* dprojected, float* drates) {
  __shared__ ScanSteps steps;
  __shared__ float of_decay[chunk_tokens];
  const ScanSizes& sizes = in.sizes;
  const int head = static_cast<int>(blockIdx.x) % sizes.heads, token = static_cast<int>(threadIdx.x);
  const ScanChunk chunk = sizes.chunk(static_cast<int>(blockIdx.x) / sizes.heads);
  const std::int64_t number = blockIdx.x, heads = gridDim.x, at = number * chunk_tokens + token;
  find_scan_steps(in, chunk, head, steps);
  float through_c = 0.0f, through_b = 0.0f, of_states = 0.0f;
  for (int tile = 0; tile < scan_tiles(sizes.state_size); ++tile) {
    through_c += sums.through_c[tile * heads * chunk_tokens + at];
    through_b += sums.through_b[tile * heads * chunk_tokens + at];
    of_states += sums.of_states[tile * heads + number];
  }
  const float step = steps.step[token], of_weight = sums.of_weights[at], held = steps.onto_state[token] * through_b;
  const float all_held = sum_of_block(held) + steps.keep * of_states;
  float decay = sums.of_reads[at] + steps.of_state[token] * through_c - step * of_weight - held;
  if (token == chunk.count - 1) decay += all_held;
  of_decay[token] = decay;
  __syncthreads();
  float behind = 0.0f;
  for (int i = chunk.count - 1; i >= token; --i) behind += of_decay[i];
  float draw = 0.0f;
  if (token < chunk.count) {
    const float dstep = of_weight + steps.unstepped[token] * through_b + behind * in.rate(head);
    draw = dstep * logistic(in.raw_step(chunk, head, token));
    dprojected[(chunk.row + token) * sizes.columns + sizes.columns - sizes.heads + head] = from_float<T>(draw);
  }
  const float of_rate = sum_of_block(behind * step) * in.rate(head), of_d = sum_of_block(sums.of_own[at]);
  const float of_bias = sum_of_block(draw);
  if (token == 0) {
    drates[number] = of_rate;
    drates[heads + number] = of_d;
    drates[2 * heads + number] = of_bias;
  }
}

// The workspace of ScanSums and of the parts of the rates' gradients.
struct SumsRoom {
  Tensor memory;
  ScanSums sums = {};
  float* drates = nullptr;

  SumsRoom(KernelContext& context, const ScanCall& call) {
    const std::int64_t heads = call.chunks() * call.shape.heads;
    const std::int64_t tiles = scan_tiles(static_cast<int>(call.shape.state_size));
    const std::int64_t tokens = heads * chunk_tokens, of_tiles = tiles * tokens;
    const std::int64_t floats = 3 * tokens + 2 * of_tiles + tiles * heads + 3 * heads;
    memory = context.ledger.allocate_on(context.stream, Bucket::workspace, DType::float32, floats, 1);
    float* at = elements<float>(memory.view());
    const auto take = [&](std::int64_t count) { return std::exchange(at, at + count); };
    sums = {take(tokens), take(tokens), take(tokens), take(of_tiles), take(of_tiles), take(tiles * heads)};
    drates = take(3 * heads);
  }
};

// All but dx.
template <typename E>
void queue_gradients(KernelContext& context, const ScanCall& call, ConstTensorView dy, ConstTensorView states,
                     const float* dstates, const float* pairs, float* dpairs, TensorView dmixed, TensorView dprojected,
                     const SumsRoom& room) {
  using T = typename DeviceElement<E>::type;
  const cudaStream_t stream = native(context.stream);
  const ScanInputs<T> in = call.inputs<E>();
  const auto groups = static_cast<unsigned>(call.chunks() * call.shape.groups);
  const unsigned tiles = groups * static_cast<unsigned>(scan_tiles(in.sizes.state_size));
  const float* forward_states = elements<float>(states);
  launch(stream, groups, threads_of_tile, 0, pair_gradients_kernel<T>, in, elements<E>(dy), pairs, dpairs, room.sums);
  launch(stream, tiles, threads_of_tile, 0, key_gradients_kernel<T, false>, in, elements<E>(dy), forward_states,
         dstates, dpairs, elements<E>(dmixed), room.sums);
  launch(stream, tiles, threads_of_tile, 0, key_gradients_kernel<T, true>, in, in.mixed, forward_states, dstates,
         dpairs, elements<E>(dmixed), room.sums);
  launch(stream, static_cast<unsigned>(call.chunks() * call.shape.heads), chunk_tokens, 0, step_gradients_kernel<T>, in,
         room.sums, elements<E>(dprojected), room.drates);
}

}  // namespace

void scan_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dy,
                          ConstTensorView mixed, ConstTensorView projected, const StateSpaceRates& rates,
                          ConstTensorView document_begins, ConstTensorView states, TensorView dmixed,
                          TensorView dprojected, const StateSpaceRateGradients& drates) {
  const ScanCall call = {shape, mixed, projected, rates, document_begins};
  const auto workspace = [&](std::int64_t rows, std::int64_t columns) {
    return context.ledger.allocate_on(context.stream, Bucket::workspace, DType::float32, rows, columns);
  };
  const SumsRoom room(context, call);
  Tensor dstates = workspace(states.rows(), states.columns());
  Tensor squares = workspace(2 * call.chunks() * shape.groups, square_floats);
  float *const pairs = elements<float>(squares.view()), *const dpairs = pairs + squares.view().size() / 2;
  multiply_pairs(context, call, pairs);
  scan_chunks_back(context, call, dy, pairs, elements<float>(dstates.view()), dmixed);
  with_element_type(dy.dtype(), [&](auto element) {
    queue_gradients<decltype(element)>(context, call, dy, states, elements<float>(dstates.view()), pairs, dpairs,
                                       dmixed, dprojected, room);
  });
  const float* part = room.drates;
  for (const TensorView gradient : {drates.a_log, drates.d, drates.dt_bias}) {
    column_sums(native(context.stream), part, call.chunks(), shape.heads, elements<float>(gradient));
    part += call.chunks() * shape.heads;
  }
}

const StateSpaceKernels state_space_kernels = {mix_tokens_forward,   mix_tokens_backward, scan_tokens_forward,
                                               scan_tokens_backward, gated_norm_forward,  gated_norm_backward};

}  // namespace weft::cuda
