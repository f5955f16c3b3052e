// QK-norm and rotary embedding in one pass. With n elements of s bytes in q and k, either direction moves 2 n s bytes,
// the backward with QK-norm 3 n s. Angles (4 bytes per element of a head, shared by all heads of a token) come from the
// caches.
//
// A head is computed by 1 to 32 lanes of a warp. A lane has the same N pairs (i, i + d/2) of one head after the other,
// so it reads angles once per token and weights once.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/cuda/rotary.cuh"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

template <int N, typename T>
__device__ float square_sum(const Pairs<N, T>& x) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float first = to_float(x.first[i]), second = to_float(x.second[i]);
    sum += first * first + second * second;
  }
  return sum;
}
__device__ float inverse_rms(float squares, int half, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(2 * half) + eps);
}

// Without a norm, `inverse` and `weight` are not used.
template <int N, typename T>
__device__ Pairs<N, T> turn(const Pairs<N, T>& x, bool normed, float inverse, const Pairs<N, T>& weight,
                            const FloatPairs<N>& angles) {
  Pairs<N, T> y;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float first = to_float(x.first[i]), second = to_float(x.second[i]);
    if (normed) {
      first = first * inverse * to_float(weight.first[i]);
      second = second * inverse * to_float(weight.second[i]);
    }
    y.first[i] = from_float<T>(first * angles.first[i] - second * angles.second[i]);
    y.second[i] = from_float<T>(second * angles.first[i] + first * angles.second[i]);
  }
  return y;
}

// Heads that a thread of the forward reads before it writes the first. Enough bytes are on their way to hide the
// latency of memory, and angles are loaded once for all.
constexpr int of_thread = 2;

// Heads with a norm, or some with one. Each element is read before it is written, so y may be x, with rows as long.
// Heads of more than 32 * N pairs take several rounds of lanes.
template <typename T, int N>
__global__ void __launch_bounds__(rotary_threads)
    norm_forward_kernel(const __grid_constant__ Heads<T> heads, const T* x, T* y) {
  const HeadGroup<T>& group = heads.groups[blockIdx.y];
  if (group.heads == 0) return;
  const Place at = place(heads.lanes, (group.heads + of_thread - 1) / of_thread);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * heads.chunk_tokens;
  const std::int64_t end = begin + heads.chunk_tokens < heads.tokens ? begin + heads.chunk_tokens : heads.tokens;
  const int half = heads.half, head_dim = 2 * half, own = at.lane * N, round = heads.lanes * N;
  const bool used = at.token < at.token_step;
  const bool normed = group.weight != nullptr;
  Pairs<N, T> weight = {};
  if (normed && own < half) weight = Pairs<N, T>::load(group.weight + own, half);
  for (std::int64_t first_token = begin; first_token < end; first_token += at.token_step) {
    const std::int64_t token = first_token + at.token;
    const bool token_used = used && token < end;
    const float* angle_row = heads.table + (token_used ? token % heads.sequence_length : 0) * head_dim;
    FloatPairs<N> angles = {};
    if (own < half) angles = FloatPairs<N>::load(angle_row + own, half);
    for (int first_head = 0; first_head < group.heads; first_head += of_thread * at.head_step) {
      const auto column = [&](int head) { return group.column + static_cast<std::int64_t>(head) * head_dim; };
      // Loaded without a branch: in one, each load would be waited for. What is not a thread's own is not used.
      Pairs<N, T> pairs[of_thread];
      bool active[of_thread];
#pragma unroll
      for (int h = 0; h < of_thread; ++h) {
        const int head = first_head + h * at.head_step + at.head;
        active[h] = token_used && head < group.heads;
        const T* from = active[h] ? x + token * heads.columns + column(head) : x + group.column;
        pairs[h] = Pairs<N, T>::load(from + (own < half ? own : 0), half);
      }
#pragma unroll
      for (int h = 0; h < of_thread; ++h) {
        const int head = first_head + h * at.head_step + at.head;
        const T* from = x + token * heads.columns + column(head);
        T* to = y + token * heads.rotated_columns + column(head);
        float inverse = 1.0f;
        if (normed) {
          float squares = own < half ? square_sum(pairs[h]) : 0.0f;
          for (int i = own + round; active[h] && i < half; i += round) {
            squares += square_sum(Pairs<N, T>::load(from + i, half));
          }
          inverse = inverse_rms(reduce_lanes(squares, heads.lanes, AddTo()), half, heads.eps);
        }
        if (!active[h]) continue;
        if (own < half) turn(pairs[h], normed, inverse, weight, angles).store(to + own, half);
        for (int i = own + round; i < half; i += round) {
          const Pairs<N, T> rest = Pairs<N, T>::load(from + i, half);
          Pairs<N, T> further = {};
          if (normed) further = Pairs<N, T>::load(group.weight + i, half);
          turn(rest, normed, inverse, further, FloatPairs<N>::load(angle_row + i, half)).store(to + i, half);
        }
      }
    }
  }
}

// The gradient of the input of the rotation.
template <int N, typename T>
__device__ FloatPairs<N> turn_back(const Pairs<N, T>& dy, const FloatPairs<N>& angles) {
  FloatPairs<N> gradient;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float first = to_float(dy.first[i]), second = to_float(dy.second[i]);
    gradient.first[i] = first * angles.first[i] + second * angles.second[i];
    gradient.second[i] = second * angles.first[i] - first * angles.second[i];
  }
  return gradient;
}
// With n = x / rms and g the gradient before the rotation: dw += g n and dx = (g w - n mean(g w n)) / rms. This is the
// sum of g w n.
template <int N, typename T>
__device__ float along_normal(const FloatPairs<N>& gradient, const Pairs<N, T>& x, const Pairs<N, T>& weight,
                              float inverse) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum += gradient.first[i] * to_float(weight.first[i]) * (to_float(x.first[i]) * inverse) +
           gradient.second[i] * to_float(weight.second[i]) * (to_float(x.second[i]) * inverse);
  }
  return sum;
}
template <int N, typename T>
__device__ void add_weight_gradient(const FloatPairs<N>& gradient, const Pairs<N, T>& x, float inverse,
                                    FloatPairs<N>& dweight) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    dweight.first[i] += gradient.first[i] * (to_float(x.first[i]) * inverse);
    dweight.second[i] += gradient.second[i] * (to_float(x.second[i]) * inverse);
  }
}
template <int N, typename T>
__device__ Pairs<N, T> input_gradient(const FloatPairs<N>& gradient, const Pairs<N, T>& x, const Pairs<N, T>& weight,
                                      float inverse, float mean) {
  Pairs<N, T> dx;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float first = to_float(x.first[i]) * inverse, second = to_float(x.second[i]) * inverse;
    dx.first[i] = from_float<T>(inverse * (gradient.first[i] * to_float(weight.first[i]) - first * mean));
    dx.second[i] = from_float<T>(inverse * (gradient.second[i] * to_float(weight.second[i]) - second * mean));
  }
  return dx;
}

// Without QK-norm: rotates rows of `from` into those of `to`, or inverts the rotation in place.
template <typename T, int N, bool back>
__global__ void __launch_bounds__(rotary_threads)
    turn_kernel(const __grid_constant__ Heads<T> heads, const T* from, T* to) {
  const HeadGroup<T>& group = heads.groups[blockIdx.y];
  if (group.heads == 0) return;
  const Place at = place(heads.lanes, group.heads);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * heads.chunk_tokens;
  const std::int64_t end = begin + heads.chunk_tokens < heads.tokens ? begin + heads.chunk_tokens : heads.tokens;
  const int half = heads.half, head_dim = 2 * half;
  if (at.token >= at.token_step) return;  // no lane waits for another here
  for (std::int64_t token = begin + at.token; token < end; token += at.token_step) {
    const float* angle_row = heads.table + token % heads.sequence_length * head_dim;
    for (int i = at.lane * N; i < half; i += heads.lanes * N) {
      const auto angles = FloatPairs<N>::load(angle_row + i, half);
      for (int head = at.head; head < group.heads; head += at.head_step) {
        const std::int64_t column = group.column + static_cast<std::int64_t>(head) * head_dim + i;
        Pairs<N, T> pairs = Pairs<N, T>::load(from + token * heads.columns + column, half);
        if constexpr (back) {
          const FloatPairs<N> gradient = turn_back(pairs, angles);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            pairs.first[j] = from_float<T>(gradient.first[j]);
            pairs.second[j] = from_float<T>(gradient.second[j]);
          }
        } else {
          pairs = turn(pairs, false, 1.0f, {}, angles);
        }
        pairs.store(to + token * heads.rotated_columns + column, half);
      }
    }
  }
}

// Adds the sums of a block's threads, each of the pairs from `own` on, and writes them to
// partials[blockIdx.x][head_dim].
template <int N, int Rounds>
__device__ void store_weight_gradient(const FloatPairs<N> (&dweight)[Rounds], int lanes, int half, int own,
                                      float* partials) {
  const int head_dim = 2 * half, round = lanes * N;
  // [slots][head_dim]: the sums of the threads of one head, for each head that the block computes at a time.
  float* of_slots = dynamic_shared<float>();
  float* of_slot = of_slots + static_cast<int>(threadIdx.x) / lanes * head_dim;
#pragma unroll
  for (int r = 0; r < Rounds; ++r) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int pair = own + r * round + i;
      if (pair < half) {
        of_slot[pair] = dweight[r].first[i];
        of_slot[half + pair] = dweight[r].second[i];
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += rotary_threads) {
    float sum = 0.0f;
    for (int slot = 0; slot < rotary_threads / lanes; ++slot) sum += of_slots[slot * head_dim + i];
    partials[static_cast<std::int64_t>(blockIdx.x) * head_dim + i] = sum;
  }
}

// A group with QK-norm and heads of at most `Rounds` * 32 * N pairs. A thread sums the weight gradients of its pairs in
// registers. The block adds the sums of its threads in order and writes them to partials[blockIdx.x][head_dim].
template <typename T, int N, int Rounds>
__global__ void __launch_bounds__(rotary_threads)
    norm_backward_kernel(const __grid_constant__ Heads<T> heads, int group_index, const T* x, T* gradients,
                         float* partials) {
  const HeadGroup<T>& group = heads.groups[group_index];
  const Place at = place(heads.lanes, group.heads);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * heads.chunk_tokens;
  const std::int64_t end = begin + heads.chunk_tokens < heads.tokens ? begin + heads.chunk_tokens : heads.tokens;
  const int half = heads.half, head_dim = 2 * half, own = at.lane * N, round = heads.lanes * N;
  const bool used = at.token < at.token_step;
  Pairs<N, T> weight[Rounds];
  FloatPairs<N> dweight[Rounds] = {};
#pragma unroll
  for (int r = 0; r < Rounds; ++r) {
    weight[r] = {};
    if (own + r * round < half) weight[r] = Pairs<N, T>::load(group.weight + own + r * round, half);
  }
  for (std::int64_t first_token = begin; first_token < end; first_token += at.token_step) {
    const std::int64_t token = first_token + at.token;
    const bool token_used = used && token < end;
    const float* angle_row = heads.table + (token_used ? token % heads.sequence_length : 0) * head_dim;
    FloatPairs<N> angles[Rounds];
#pragma unroll
    for (int r = 0; r < Rounds; ++r) {
      angles[r] = {};
      if (own + r * round < half) angles[r] = FloatPairs<N>::load(angle_row + own + r * round, half);
    }
    for (int first_head = 0; first_head < group.heads; first_head += at.head_step) {
      const int head = first_head + at.head;
      const bool active = token_used && head < group.heads;
      const std::int64_t start =
          token * heads.columns + group.column + static_cast<std::int64_t>(head) * head_dim + own;
      Pairs<N, T> input[Rounds];
      FloatPairs<N> gradient[Rounds];
      float squares = 0.0f;
#pragma unroll
      for (int r = 0; r < Rounds; ++r) {
        input[r] = {};
        Pairs<N, T> turned = {};
        if (active && own + r * round < half) {
          input[r] = Pairs<N, T>::load(x + start + r * round, half);
          turned = Pairs<N, T>::load(gradients + start + r * round, half);
        }
        gradient[r] = turn_back(turned, angles[r]);
        squares += square_sum(input[r]);
      }
      const float inverse = inverse_rms(reduce_lanes(squares, heads.lanes, AddTo()), half, heads.eps);
      float sum = 0.0f;
#pragma unroll
      for (int r = 0; r < Rounds; ++r) {
        sum += along_normal(gradient[r], input[r], weight[r], inverse);
        // An inactive head has zeros, except `inverse`, which is infinite if eps is zero.
        if (active) add_weight_gradient(gradient[r], input[r], inverse, dweight[r]);
      }
      const float mean = reduce_lanes(sum, heads.lanes, AddTo()) / static_cast<float>(head_dim);
#pragma unroll
      for (int r = 0; r < Rounds; ++r) {
        if (active && own + r * round < half) {
          input_gradient(gradient[r], input[r], weight[r], inverse, mean).store(gradients + start + r * round, half);
        }
      }
    }
  }
  store_weight_gradient(dweight, heads.lanes, half, own, partials);
}

template <typename E>
const typename DeviceElement<E>::type* weight_data(ConstTensorView weight, std::int64_t head_dim) {
  require(weight.empty() || weight.size() == head_dim, "a norm weight has one element a head dimension");
  return weight.empty() ? nullptr : elements<E>(weight);
}

// Blocks that fill a large GPU several times. More blocks, and so more partial sums, would not be faster.
constexpr std::int64_t enough_blocks = 2112;

// `width` is N, the number of pairs per vector. A thread reads `heads_of_thread` heads before it writes.
template <typename E>
auto heads_of(const RotaryOptions& options, std::int64_t tokens, ConstTensorView q_norm, ConstTensorView k_norm,
              int width, int heads_of_thread) {
  const HeadShape& shape = options.heads;
  const std::int64_t d = shape.head_dim;
  Heads<typename DeviceElement<E>::type> heads{};
  heads.groups[0] = {0, static_cast<int>(shape.query_heads), weight_data<E>(q_norm, d)};
  heads.groups[1] = {shape.key_column(), static_cast<int>(shape.key_value_heads), weight_data<E>(k_norm, d)};
  heads.table = elements<float>(options.table);
  heads.tokens = tokens;
  heads.columns = heads.rotated_columns = shape.columns();
  heads.sequence_length = shape.sequence_length;
  heads.half = static_cast<int>(d / 2);
  const auto vectors = static_cast<unsigned>(heads.half / width);
  heads.lanes = static_cast<int>(std::min(std::bit_ceil(vectors), static_cast<unsigned>(warp_size)));
  heads.eps = options.eps;
  // Tokens of a block: at least as many as it computes at once.
  const std::int64_t slots = rotary_threads / heads.lanes;
  const std::int64_t heads_at_once = (shape.query_heads + heads_of_thread - 1) / heads_of_thread;
  const std::int64_t at_once = std::max<std::int64_t>(slots / std::max<std::int64_t>(heads_at_once, 1), 1);
  const std::int64_t chunk = std::max((tokens + enough_blocks - 1) / enough_blocks, at_once);
  heads.chunk_tokens = (chunk + at_once - 1) / at_once * at_once;
  return heads;
}

template <typename T>
dim3 blocks_of(const Heads<T>& heads) {
  const std::int64_t chunks = (heads.tokens + heads.chunk_tokens - 1) / heads.chunk_tokens;
  return dim3(static_cast<unsigned>(chunks), 2, 1);
}

// Heads wider than one round of a warp's lanes are rare and use single elements too.
bool in_vectors(const RotaryOptions& options, DType dtype, std::int64_t rotated_columns,
                std::initializer_list<ConstTensorView> matrices) {
  const std::int64_t half = options.heads.head_dim / 2;
  return vectorise(DType::float32, half, {options.table}) && half * size_of(dtype) <= warp_size * 16 &&
         vectorise(dtype, half, matrices) && vectorise(dtype, options.heads.columns(), {}) &&
         vectorise(dtype, rotated_columns, {});
}

// One group with a norm; `dweight` is overwritten.
template <typename T, int N, int Rounds>
void queue_norm_backward(KernelContext& context, const Heads<T>& heads, int group, const T* x, T* gradients,
                         float* dweight) {
  const auto blocks = blocks_of(heads).x;
  const std::int64_t head_dim = 2 * heads.half;
  Tensor partials = context.workspace(DType::float32, blocks, head_dim);
  float* partial_sums = elements<float>(partials.view());
  const std::size_t shared_bytes = rotary_threads / heads.lanes * head_dim * sizeof(float);
  launch(native(context.stream), blocks, rotary_threads, shared_bytes, norm_backward_kernel<T, N, Rounds>, heads, group,
         x, gradients, partial_sums);
  column_sums(native(context.stream), partial_sums, blocks, head_dim, dweight);
}

template <typename T, int N>
auto queue_norm_backward_of(int half) {
  const int rounds = (half + warp_size * N - 1) / (warp_size * N);
  if constexpr (N == 1) {
    require(rounds <= 16, "a head with QK-norm has at most 1024 elements");
    if (rounds > 4) return queue_norm_backward<T, N, 16>;
    if (rounds > 1) return queue_norm_backward<T, N, 4>;
  }
  return queue_norm_backward<T, N, 1>;
}

}  // namespace

void rotary_forward(KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                    ConstTensorView k_norm, TensorView rotated) {
  if (qkv.empty()) return;
  const bool vectors = in_vectors(options, qkv.dtype(), rotated.columns(), {qkv, rotated, q_norm, k_norm});
  with_vectors(qkv.dtype(), vectors, [&]<typename E, typename T, int N>() {
    const bool plain = q_norm.empty() && k_norm.empty();
    auto heads = heads_of<E>(options, qkv.rows(), q_norm, k_norm, N, plain ? 1 : of_thread);
    heads.rotated_columns = rotated.columns();
    launch(native(context.stream), blocks_of(heads), rotary_threads, 0,
           plain ? turn_kernel<T, N, false> : norm_forward_kernel<T, N>, heads, elements<E>(qkv), elements<E>(rotated));
  });
}

void rotary_backward(KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                     ConstTensorView k_norm, TensorView dqkv, TensorView dq_norm, TensorView dk_norm) {
  if (dqkv.empty()) {
    for (TensorView gradient : {dq_norm, dk_norm}) {
      if (!gradient.empty()) {
        column_sums(native(context.stream), nullptr, 0, gradient.size(), elements<float>(gradient));
      }
    }
    return;
  }
  const bool vectors = in_vectors(options, dqkv.dtype(), dqkv.columns(), {qkv, q_norm, k_norm, dqkv});
  with_vectors(dqkv.dtype(), vectors, [&]<typename E, typename T, int N>() {
    const auto heads = heads_of<E>(options, dqkv.rows(), q_norm, k_norm, N, 1);
    T* gradients = elements<E>(dqkv);
    const TensorView dweights[] = {dq_norm, dk_norm};
    auto plain = heads;
    for (int group = 0; group < 2; ++group) {
      if (heads.groups[group].weight == nullptr || heads.groups[group].heads == 0) continue;
      plain.groups[group].heads = 0;
      queue_norm_backward_of<T, N>(heads.half)(context, heads, group, elements<E>(qkv), gradients,
                                               elements<float>(dweights[group]));
    }
    if (plain.groups[0].heads + plain.groups[1].heads == 0) return;
    launch(native(context.stream), blocks_of(plain), rotary_threads, 0, turn_kernel<T, N, true>, plain, gradients,
           gradients);
  });
}

}  // namespace weft::cuda
