// The convolution of a state-space mixer: a thread has one channel of one token, and neighbours have neighbouring
// channels. Bytes per element of s bytes: forward 2 s, as far as the tokens before come from the caches. Backward 2 s
// and 12 of float32: the gradients in front of silu are written once and read twice.
#include <cuda_runtime.h>

#include <algorithm>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/elementary.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"
#include "parallel/runtime/element_type.h"

namespace weft::cuda {
namespace {

constexpr int channel_threads = 256;
constexpr std::int64_t most_token_runs = 256;  // of partial sums of the gradients of taps

// The inputs of a convolution. A negative position is in the history, if there is one.
template <typename T>
struct FilteredText {
  std::int64_t channels, filter, length, columns, first_column;
  const T* projected;
  const T* history;
  const std::int32_t* begins;

  // A channel at `position` of the sequence of `row`; 0 if that token does not see it.
  __device__ float seen(std::int64_t row, std::int64_t position, std::int64_t channel) const {
    const std::int64_t sequence = row / length;
    if (position < 0) {
      if (history == nullptr) return 0.0f;
      const std::int64_t past = filter - 1;
      return to_float(history[(sequence * past + past + position) * channels + channel]);
    }
    if (begins != nullptr && position < begins[row]) return 0.0f;
    return to_float(projected[(sequence * length + position) * columns + first_column + channel]);
  }
  // The input of silu.
  __device__ float filtered(std::int64_t row, std::int64_t channel, const T* weight, const T* bias) const {
    float sum = to_float(bias[channel]);
    const std::int64_t first = row % length - (filter - 1);
    for (std::int64_t k = 0; k < filter; ++k) {
      sum = fmaf(to_float(weight[channel * filter + k]), seen(row, first + k, channel), sum);
    }
    return sum;
  }
};

template <typename T>
__global__ void mix_forward_kernel(FilteredText<T> text, std::int64_t rows, const T* weight, const T* bias, T* mixed) {
  for_row_items(rows, text.channels, [=](std::int64_t row, std::int64_t channel) {
    const float sum = text.filtered(row, channel, weight, bias);
    mixed[row * text.channels + channel] = from_float<T>(sum * logistic(sum));
  });
}

// A thread has a channel of a sequence. A row that comes out of the history was further behind.
template <typename T>
__global__ void keep_history_kernel(FilteredText<T> text, std::int64_t sequences, T* history) {
  for_row_items(sequences, text.channels, [=](std::int64_t sequence, std::int64_t channel) {
    const std::int64_t past = text.filter - 1, last = sequence * text.length + text.length - 1;
    for (std::int64_t i = 0; i < past; ++i) {
      const float value = text.seen(last, text.length - past + i, channel);
      history[(sequence * past + i) * text.channels + channel] = from_float<T>(value);
    }
  });
}

// inputs [rows, channels]: the gradients in front of silu.
template <typename T>
__global__ void unmix_kernel(FilteredText<T> text, std::int64_t rows, const T* weight, const T* bias, const T* dmixed,
                             float* inputs) {
  for_row_items(rows, text.channels, [=](std::int64_t row, std::int64_t channel) {
    const float sum = text.filtered(row, channel, weight, bias), s = logistic(sum);
    const std::int64_t at = row * text.channels + channel;
    inputs[at] = to_float(dmixed[at]) * (s + sum * s * (1.0f - s));
  });
}

// A token's gradient comes from itself and the filter - 1 tokens behind it, as far as they see it.
template <typename T>
__global__ void filter_back_kernel(FilteredText<T> text, std::int64_t rows, const T* weight, const float* inputs,
                                   T* dprojected) {
  for_row_items(rows, text.channels, [=](std::int64_t row, std::int64_t channel) {
    const std::int64_t position = row % text.length;
    float sum = 0.0f;
    for (std::int64_t behind = 0; behind < text.filter && position + behind < text.length; ++behind) {
      const std::int64_t reader = row + behind;
      if (text.begins != nullptr && position < text.begins[reader]) continue;
      const float tap = to_float(weight[channel * text.filter + text.filter - 1 - behind]);
      sum = fmaf(tap, inputs[reader * text.channels + channel], sum);
    }
    dprojected[row * text.columns + text.first_column + channel] = from_float<T>(sum);
  });
}

// A block of the y-th run of tokens leaves its part of the gradients of 256 channels. Those of taps go to
// taps[run][channel * filter + k], those of biases to biases[run][channel].
template <typename T>
__global__ void __launch_bounds__(channel_threads)
    tap_gradients_kernel(FilteredText<T> text, std::int64_t rows, std::int64_t rows_of_run, const float* inputs,
                         float* taps, float* biases) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * channel_threads + threadIdx.x;
  if (channel >= text.channels) return;
  const std::int64_t begin = blockIdx.y * rows_of_run, end = begin + rows_of_run < rows ? begin + rows_of_run : rows;
  float bias = 0.0f;
  for (std::int64_t row = begin; row < end; ++row) bias += inputs[row * text.channels + channel];
  biases[blockIdx.y * text.channels + channel] = bias;
  for (std::int64_t k = 0; k < text.filter; ++k) {
    float sum = 0.0f;
    for (std::int64_t row = begin; row < end; ++row) {
      const float seen = text.seen(row, row % text.length - (text.filter - 1) + k, channel);
      sum = fmaf(inputs[row * text.channels + channel], seen, sum);
    }
    taps[(blockIdx.y * text.channels + channel) * text.filter + k] = sum;
  }
}

template <typename E>
auto filtered_text(const StateSpaceShape& shape, ConstTensorView projected, ConstTensorView document_begins,
                   ConstTensorView history) {
  using T = typename DeviceElement<E>::type;
  return FilteredText<T>{shape.channels(),
                         shape.filter,
                         shape.sequence_length,
                         shape.columns(),
                         shape.inner(),
                         elements<E>(projected),
                         history.empty() ? nullptr : elements<E>(history),
                         document_begins.empty() ? nullptr : elements<std::int32_t>(document_begins)};
}

}  // namespace

void mix_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView projected,
                        ConstTensorView weight, ConstTensorView bias, ConstTensorView document_begins,
                        TensorView history, TensorView mixed) {
  const std::int64_t rows = mixed.rows(), sequences = rows / shape.sequence_length;
  with_element_type(mixed.dtype(), [&](auto element) {
    using E = decltype(element);
    using T = typename DeviceElement<E>::type;
    const auto text = filtered_text<E>(shape, projected, document_begins, history);
    const RowGrid grid = row_grid(rows, shape.channels());
    launch(native(context.stream), grid.blocks, grid.threads, 0, mix_forward_kernel<T>, text, rows, elements<E>(weight),
           elements<E>(bias), elements<E>(mixed));
    if (history.empty()) return;
    const RowGrid kept = row_grid(sequences, shape.channels());
    launch(native(context.stream), kept.blocks, kept.threads, 0, keep_history_kernel<T>, text, sequences,
           elements<E>(history));
  });
}

void mix_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dmixed,
                         ConstTensorView projected, ConstTensorView weight, ConstTensorView bias,
                         ConstTensorView document_begins, TensorView dprojected, TensorView dweight, TensorView dbias) {
  const std::int64_t rows = dmixed.rows(), channels = shape.channels();
  const std::int64_t rows_of_run = std::max<std::int64_t>((rows + most_token_runs - 1) / most_token_runs, 1);
  const std::int64_t runs = (rows + rows_of_run - 1) / rows_of_run;
  const auto allocate = [&](std::int64_t columns, std::int64_t of_rows) {
    return context.ledger.allocate_on(context.stream, Bucket::workspace, DType::float32, of_rows, columns);
  };
  Tensor inputs = allocate(channels, rows), taps = allocate(channels * shape.filter, runs);
  Tensor biases = allocate(channels, runs);
  const cudaStream_t stream = native(context.stream);
  if (rows > 0) {
    with_element_type(dmixed.dtype(), [&](auto element) {
      using E = decltype(element);
      using T = typename DeviceElement<E>::type;
      const auto text = filtered_text<E>(shape, projected, document_begins, {});
      const RowGrid grid = row_grid(rows, channels);
      launch(stream, grid.blocks, grid.threads, 0, unmix_kernel<T>, text, rows, elements<E>(weight), elements<E>(bias),
             elements<E>(dmixed), elements<float>(inputs.view()));
      launch(stream, grid.blocks, grid.threads, 0, filter_back_kernel<T>, text, rows, elements<E>(weight),
             elements<float>(inputs.view()), elements<E>(dprojected));
      launch(stream, dim3(blocks_for(channels, channel_threads), static_cast<unsigned>(runs)), dim3(channel_threads), 0,
             tap_gradients_kernel<T>, text, rows, rows_of_run, elements<float>(inputs.view()),
             elements<float>(taps.view()), elements<float>(biases.view()));
    });
  }
  const auto sum = [&](Tensor& partials, TensorView sums) {
    column_sums(stream, runs == 0 ? nullptr : elements<float>(partials.view()), runs, sums.rows(),
                elements<float>(sums));
  };
  sum(taps, dweight);
  sum(biases, dbias);
}

}  // namespace weft::cuda
