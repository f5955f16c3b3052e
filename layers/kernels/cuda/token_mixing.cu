// The convolution of a state-space mixer. A thread has some neighbouring channels and a run of tokens of one sequence,
// with the last inputs in registers. Bytes per element of s bytes: forward 2 s, backward 3 s. At the ends of a run some
// tokens are read twice, and the second time from the caches. Backward leaves 4 bytes for each tap and bias and 128
// tokens. Filters of more than four taps have a wider window and one channel a thread.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/cuda/rounded_functions.cuh"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int mixed_width = 4;   // channels of a thread, which keeps about 17 numbers for each
constexpr int usual_window = 4;  // tokens in registers
constexpr int wide_window = static_cast<int>(most_filter_taps);
constexpr int runs_of_block = 4;  // side by side, of the same channels
constexpr int tokens_of_run = 32, tokens_in_flight = 4;
constexpr std::int64_t most_partial_sums = 256;  // of the gradient of a tap

// The sequences in runs of about equal length.
struct TokenRuns {
  int count, of_sequence, tokens;
};

// The inputs of a convolution, and what is filtered.
template <typename T>
struct FilteredText {
  int channels, columns, first_column, filter, length;
  const T* projected;
  const T* history;
  const std::int32_t* begins;
  const T* weight;
  const T* bias;

  // The first position that a token sees, but for its filter.
  __device__ int begin(std::int64_t row) const { return begins == nullptr ? -filter : begins[row]; }
  // Of the tokens from `first` on, as far as they are in front of `end`.
  __device__ void load_begins(std::int64_t row, int first, int end, int* to) const {
#pragma unroll
    for (int i = 0; i < tokens_in_flight; ++i) to[i] = begin(row + min(first + i, end - 1));
  }
  __device__ const T* inputs(std::int64_t row, std::int64_t channel) const {
    return projected + row * columns + first_column + channel;
  }
  // Channels at a position of a sequence. A negative one is in the history, if there is one, and 0 otherwise.
  template <int N>
  __device__ Vector<T, N> input(std::int64_t sequence, int position, std::int64_t channel) const {
    if (position >= 0) return load_vector<N>(inputs(sequence * length + position, channel));
    const std::int64_t past = filter - 1;
    if (history == nullptr || position < -past) return {};
    return load_vector<N>(history + (sequence * past + past + position) * channels + channel);
  }
};

// Calls body(sequence, begin, end) for the positions of each run that the thread has.
template <typename T, typename Body>
__device__ void for_runs(const FilteredText<T>& text, const TokenRuns& runs, Body body) {
  const int step = static_cast<int>(gridDim.y * blockDim.y);
  for (int run = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y); run < runs.count; run += step) {
    const int sequence = run / runs.of_sequence, begin = (run - sequence * runs.of_sequence) * runs.tokens;
    body(static_cast<std::int64_t>(sequence), begin, min(begin + runs.tokens, text.length));
  }
}
// One multiplication of 32 bits.
__device__ std::int64_t row_offset(int row, int columns) {
  return static_cast<std::int64_t>(row) * columns;
}
template <int N>
__device__ std::int64_t channel_of_thread() {
  return (static_cast<std::int64_t>(blockIdx.x) * warp_size + threadIdx.x) * N;
}

// A thread's channels: the inputs of the last tokens, the newest one last, and what they are filtered with. Taps that a
// shorter filter lacks are 0.
template <typename T, int N, int window>
struct FilterWindow {
  float bias[N], taps[window][N], inputs[window][N];

  __device__ FilterWindow(const FilteredText<T>& text, std::int64_t channel) {
    const int lacking = window - text.filter;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      bias[i] = to_float(text.bias[channel + i]);
#pragma unroll
      for (int k = 0; k < window; ++k) {
        taps[k][i] = k < lacking ? 0.0f : to_float(text.weight[(channel + i) * text.filter + k - lacking]);
      }
    }
  }
  __device__ void push(const Vector<T, N>& input) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int k = 0; k + 1 < window; ++k) inputs[k][i] = inputs[k + 1][i];
      inputs[window - 1][i] = to_float(input[i]);
    }
  }
  // The inputs in front of the token at `position`.
  __device__ void start(const FilteredText<T>& text, std::int64_t sequence, int position, std::int64_t channel) {
#pragma unroll
    for (int behind = window - 1; behind > 0; --behind) {
      push(text.template input<N>(sequence, position - behind, channel));
    }
  }
  // No token from the newest one on sees the first `count` inputs.
  __device__ void hide(int count) {
#pragma unroll
    for (int k = 0; k + 1 < window; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) inputs[k][i] = k < count ? 0.0f : inputs[k][i];
    }
  }
  // The input of silu.
  __device__ float filtered(int i) const {
    float sum = bias[i];
#pragma unroll
    for (int k = 0; k < window; ++k) sum = fmaf(taps[k][i], inputs[k][i], sum);
    return sum;
  }
};

// The number of inputs in the window that the token at `position` does not see. Documents follow each other, so no
// later token sees them either.
template <int window>
__device__ int hidden_inputs(int position, int begin, int filter) {
  return max(begin - (position - (window - 1)), window - filter);
}

template <typename T, int N, int window>
__global__ void __launch_bounds__(warp_size* runs_of_block)
    mix_forward_kernel(FilteredText<T> text, TokenRuns runs, T* mixed) {
  const std::int64_t channel = channel_of_thread<N>();
  if (channel >= text.channels) return;
  FilterWindow<T, N, window> tokens(text, channel);
  for_runs(text, runs, [&](std::int64_t sequence, int begin, int end) {
    const std::int64_t row = sequence * text.length;
    const T* from = text.inputs(row, channel);
    T* to = mixed + row * text.channels + channel;
    tokens.start(text, sequence, begin, channel);
    for (int first = begin; first < end; first += tokens_in_flight) {
      int begins[tokens_in_flight];
      Words<T, N> inputs[tokens_in_flight];
      text.load_begins(row, first, end, begins);
#pragma unroll
      for (int i = 0; i < tokens_in_flight; ++i) {
        inputs[i] = load_words<N>(from + row_offset(min(first + i, end - 1), text.columns));
      }
#pragma unroll
      for (int i = 0; i < tokens_in_flight; ++i) {
        if (first + i >= end) continue;
        tokens.push(std::bit_cast<Vector<T, N>>(inputs[i]));
        const int hidden = hidden_inputs<window>(first + i, begins[i], text.filter);
        if (hidden > 0) tokens.hide(hidden);
        Vector<T, N> result;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float sum = tokens.filtered(j);
          result[j] = from_float<T>(sum * rounded_logistic<T>(sum));
        }
        store_vector(to + row_offset(first + i, text.channels), result);
      }
    }
  });
}

// A thread's channels: gradients of the tokens in the window, and of taps and biases over all its runs. A token's is
// complete after the last token that sees it.
template <typename T, int N, int window>
struct WindowGradients {
  float inputs[window][N], taps[window][N], bias[N];
  T* to;              // dprojected at position 0 of the sequence
  int columns;        // of dprojected
  int unstored, end;  // the positions of the run that are not stored yet

  __device__ void store(int k, int position) {
    if (position < unstored || position >= end) return;
    Vector<T, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = from_float<T>(inputs[k][i]);
    store_vector(to + row_offset(position, columns), result);
  }
  // No more is added to the first `count` tokens of the window that ends at `position`.
  __device__ void finish(int count, int position) {
    const int first = position - (window - 1);
#pragma unroll
    for (int k = 0; k < window; ++k) {
      if (k < count) store(k, first + k);
    }
    unstored = max(unstored, first + count);
  }
  // The window then ends at `position`.
  __device__ void move(int position) {
    store(0, position - window);
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int k = 0; k + 1 < window; ++k) inputs[k][i] = inputs[k + 1][i];
      inputs[window - 1][i] = 0.0f;
    }
  }
  // A token with gradient `dmixed` and the inputs in `tokens`. Those of taps count if the token is one of the run.
  __device__ void add(const FilterWindow<T, N, window>& tokens, const Vector<T, N>& dmixed, bool of_run) {
    float gradient[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float sum = tokens.filtered(i), s = rounded_logistic<T>(sum);
      gradient[i] = to_float(dmixed[i]) * (s + sum * s * (1.0f - s));
#pragma unroll
      for (int k = 0; k < window; ++k) inputs[k][i] = fmaf(tokens.taps[k][i], gradient[i], inputs[k][i]);
    }
    if (!of_run) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      bias[i] += gradient[i];
#pragma unroll
      for (int k = 0; k < window; ++k) taps[k][i] = fmaf(gradient[i], tokens.inputs[k][i], taps[k][i]);
    }
  }
};

// Adds up what the threads of a block have of the same channels: taps[blockIdx.y][channel * filter + k] and
// biases[blockIdx.y][channel].
template <typename T, int N, int window>
__device__ void leave_sums(const FilteredText<T>& text, const WindowGradients<T, N, window>& own, float* taps,
                           float* biases) {
  __shared__ float sums[runs_of_block][window + 1][N][warp_size];
  const auto run = threadIdx.y, lane = threadIdx.x;
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int k = 0; k < window; ++k) sums[run][k][i][lane] = own.taps[k][i];
    sums[run][window][i][lane] = own.bias[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(run); i < N; i += runs_of_block) {
    const std::int64_t channel = channel_of_thread<N>() + i, at = blockIdx.y * text.channels + channel;
    if (channel >= text.channels) return;
    const int lacking = window - text.filter;
    for (int k = lacking; k <= window; ++k) {
      float sum = 0.0f;
#pragma unroll
      for (int of = 0; of < runs_of_block; ++of) sum += sums[of][k][i][lane];
      (k < window ? taps[at * text.filter + k - lacking] : biases[at]) = sum;
    }
  }
}

// A token's gradient comes from itself and the filter - 1 tokens behind it, as far as they see it. Those behind the run
// are computed here and, for their own run, by another thread.
template <typename T, int N, int window>
__global__ void __launch_bounds__(warp_size* runs_of_block)
    mix_backward_kernel(FilteredText<T> text, TokenRuns runs, const T* dmixed, T* dprojected, float* taps,
                        float* biases) {
  const std::int64_t channel = channel_of_thread<N>();
  WindowGradients<T, N, window> gradients{};
  gradients.columns = text.columns;
  if (channel < text.channels) {
    FilterWindow<T, N, window> tokens(text, channel);
    for_runs(text, runs, [&](std::int64_t sequence, int begin, int end) {
      const std::int64_t row = sequence * text.length;
      const int readers_end = min(end + text.filter - 1, text.length);
      const T *from = text.inputs(row, channel), *dy_from = dmixed + row * text.channels + channel;
      gradients.to = dprojected + row * text.columns + text.first_column + channel;
      gradients.unstored = begin;
      gradients.end = end;
      tokens.start(text, sequence, begin, channel);
      for (int first = begin; first < readers_end; first += tokens_in_flight) {
        int begins[tokens_in_flight];
        Words<T, N> inputs[tokens_in_flight], dy[tokens_in_flight];
        text.load_begins(row, first, readers_end, begins);
#pragma unroll
        for (int i = 0; i < tokens_in_flight; ++i) {
          const int position = min(first + i, readers_end - 1);
          inputs[i] = load_words<N>(from + row_offset(position, text.columns));
          dy[i] = load_words<N>(dy_from + row_offset(position, text.channels));
        }
#pragma unroll
        for (int i = 0; i < tokens_in_flight; ++i) {
          const int position = first + i;
          if (position >= readers_end) continue;
          tokens.push(std::bit_cast<Vector<T, N>>(inputs[i]));
          gradients.move(position);
          const int hidden = hidden_inputs<window>(position, begins[i], text.filter);
          if (hidden > 0) {
            tokens.hide(hidden);
            gradients.finish(hidden, position);
          }
          gradients.add(tokens, std::bit_cast<Vector<T, N>>(dy[i]), position < end);
        }
      }
      gradients.finish(window, readers_end - 1);
    });
  }
  leave_sums(text, gradients, taps, biases);
}

// A thread has a channel of a sequence. A row that comes out of the history was further behind.
template <typename T>
__global__ void keep_history_kernel(FilteredText<T> text, std::int64_t sequences, T* history) {
  for_row_items(sequences, text.channels, [=](std::int64_t sequence, std::int64_t channel) {
    const int past = text.filter - 1;
    for (int i = 0; i < past; ++i) {
      history[(sequence * past + i) * text.channels + channel] =
          text.template input<1>(sequence, text.length - past + i, channel)[0];
    }
  });
}

template <typename E>
auto filtered_text(const StateSpaceShape& shape, ConstTensorView projected, ConstTensorView weight,
                   ConstTensorView bias, ConstTensorView document_begins, ConstTensorView history) {
  using T = typename DeviceElement<E>::type;
  return FilteredText<T>{static_cast<int>(shape.channels()),
                         static_cast<int>(shape.columns()),
                         static_cast<int>(shape.x_column()),
                         static_cast<int>(shape.filter),
                         static_cast<int>(shape.sequence_length),
                         elements<E>(projected),
                         history.empty() ? nullptr : elements<E>(history),
                         document_begins.empty() ? nullptr : elements<std::int32_t>(document_begins),
                         elements<E>(weight),
                         elements<E>(bias)};
}
TokenRuns token_runs(const StateSpaceShape& shape, std::int64_t rows) {
  const std::int64_t length = shape.sequence_length, of_sequence = (length + tokens_of_run - 1) / tokens_of_run;
  return {static_cast<int>(rows / length * of_sequence), static_cast<int>(of_sequence),
          static_cast<int>((length + of_sequence - 1) / of_sequence)};
}
// Of runs, side by side in grids: blockIdx.y.
std::int64_t blocks_of_runs(const TokenRuns& runs, std::int64_t at_most) {
  return std::min<std::int64_t>((runs.count + runs_of_block - 1) / runs_of_block, at_most);
}
dim3 mixing_blocks(std::int64_t channels, int width, std::int64_t of_runs) {
  return {blocks_for(channels, std::int64_t{width} * warp_size), static_cast<unsigned>(of_runs), 1};
}
// Whether all of these columns, in rows of `text`, can be accessed in vectors of `mixed_width` channels.
template <typename T, typename... P>
bool mixes_vectors(const FilteredText<T>& text, const P*... arrays) {
  const bool aligned = ((elements_before_vector(arrays, mixed_width) == 0) && ...);
  return aligned && (text.history == nullptr || elements_before_vector(text.history, mixed_width) == 0) &&
         text.channels % mixed_width == 0 && text.columns % mixed_width == 0 && text.first_column % mixed_width == 0;
}

}  // namespace

void mix_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView projected,
                        ConstTensorView weight, ConstTensorView bias, ConstTensorView document_begins,
                        TensorView history, TensorView mixed) {
  const std::int64_t sequences = mixed.rows() / shape.sequence_length;
  const cudaStream_t stream = native(context.stream);
  with_elements(mixed.dtype(), [&]<typename E, typename T>() {
    const auto text = filtered_text<E>(shape, projected, weight, bias, document_begins, history);
    const TokenRuns runs = token_runs(shape, mixed.rows());
    const bool wide = shape.filter > usual_window;
    const bool vectors = !wide && mixes_vectors(text, text.projected, elements<E>(mixed));
    const auto kernel = wide      ? mix_forward_kernel<T, 1, wide_window>
                        : vectors ? mix_forward_kernel<T, mixed_width, usual_window>
                                  : mix_forward_kernel<T, 1, usual_window>;
    constexpr std::int64_t most_blocks = 65535;
    launch(stream, mixing_blocks(text.channels, vectors ? mixed_width : 1, blocks_of_runs(runs, most_blocks)),
           dim3(warp_size, runs_of_block), 0, kernel, text, runs, elements<E>(mixed));
    if (history.empty()) return;
    const RowGrid kept = row_grid(sequences, shape.channels());
    launch(stream, kept.blocks, kept.threads, 0, keep_history_kernel<T>, text, sequences, elements<E>(history));
  });
}

void mix_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dmixed,
                         ConstTensorView projected, ConstTensorView weight, ConstTensorView bias,
                         ConstTensorView document_begins, TensorView dprojected, TensorView dweight, TensorView dbias) {
  const std::int64_t channels = shape.channels();
  const TokenRuns runs = token_runs(shape, dmixed.rows());
  const std::int64_t parts = blocks_of_runs(runs, most_partial_sums);
  Tensor taps = context.workspace(DType::float32, parts, channels * shape.filter);
  Tensor biases = context.workspace(DType::float32, parts, channels);
  const cudaStream_t stream = native(context.stream);
  if (parts > 0) {
    with_elements(dmixed.dtype(), [&]<typename E, typename T>() {
      const auto text = filtered_text<E>(shape, projected, weight, bias, document_begins, {});
      const bool wide = shape.filter > usual_window;
      const bool vectors = !wide && mixes_vectors(text, text.projected, elements<E>(dmixed), elements<E>(dprojected));
      const auto kernel = wide      ? mix_backward_kernel<T, 1, wide_window>
                          : vectors ? mix_backward_kernel<T, mixed_width, usual_window>
                                    : mix_backward_kernel<T, 1, usual_window>;
      launch(stream, mixing_blocks(channels, vectors ? mixed_width : 1, parts), dim3(warp_size, runs_of_block), 0,
             kernel, text, runs, elements<E>(dmixed), elements<E>(dprojected), elements<float>(taps.view()),
             elements<float>(biases.view()));
    });
  }
  const auto sum = [&](Tensor& partials, TensorView sums) {
    column_sums(stream, parts == 0 ? nullptr : elements<float>(partials.view()), parts, sums.rows(),
                elements<float>(sums));
  };
  sum(taps, dweight);
  sum(biases, dbias);
}

}  // namespace weft::cuda
