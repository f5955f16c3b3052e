// The convolution of a state-space mixer: each channel has a filter over the last tokens of its document.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "layers/kernels/cpu/kernels.h"
#include "layers/kernels/state_space.h"
#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

// The taps [filter][channels] in float32, so that a loop over channels reads them in order.
template <typename T>
WEFT_INLINE void turn_taps(const T* weight, std::int64_t channels, std::int64_t filter, float* taps) {
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t k = 0; k < filter; ++k) {
      taps[k * channels + channel] = static_cast<float>(weight[channel * filter + k]);
    }
  }
}

// The inputs of a convolution. A negative position is in the history, if there is one.
template <typename T>
struct MixedText {
  const StateSpaceShape& shape;
  const T* projected;
  const T* history;
  const std::int32_t* begins;

  // The row of channels at `position` of a sequence; null if token `token` of the sequence does not see it.
  const T* seen(std::int64_t sequence, std::int64_t token, std::int64_t position) const {
    const std::int64_t first_row = sequence * shape.sequence_length, past = shape.filter - 1;
    if (position < 0) {
      return history == nullptr ? nullptr : history + (sequence * past + past + position) * shape.channels();
    }
    if (begins != nullptr && position < begins[first_row + token]) return nullptr;
    return projected + (first_row + position) * shape.columns() + shape.x_column();
  }
};

// sums [channels] = bias + the filtered tokens up to `token`.
template <typename T>
WEFT_INLINE void filter_token(const MixedText<T>& text, std::int64_t sequence, std::int64_t token, const float* taps,
                              const T* bias, float* sums) {
  const std::int64_t channels = text.shape.channels(), filter = text.shape.filter;
#pragma omp simd
  for (std::int64_t i = 0; i < channels; ++i) sums[i] = static_cast<float>(bias[i]);
  for (std::int64_t k = 0; k < filter; ++k) {
    const T* x = text.seen(sequence, token, token - (filter - 1) + k);
    if (x == nullptr) continue;
    const float* tap = taps + k * channels;
#pragma omp simd
    for (std::int64_t i = 0; i < channels; ++i) sums[i] += tap[i] * static_cast<float>(x[i]);
  }
}

// The last filter - 1 inputs behind the tokens of a sequence. A row that comes out of the history was further behind.
template <typename T>
WEFT_INLINE void keep_history(const MixedText<T>& text, std::int64_t sequence, T* history) {
  const std::int64_t past = text.shape.filter - 1, channels = text.shape.channels();
  for (std::int64_t i = 0; i < past; ++i) {
    const std::int64_t last = text.shape.sequence_length - 1;
    const T* from = text.seen(sequence, last, last - past + 1 + i);
    std::memmove(history + (sequence * past + i) * channels, from, static_cast<std::size_t>(channels) * sizeof(T));
  }
}

template <typename T>
MixedText<T> mixed_text(const StateSpaceShape& shape, ConstTensorView projected, ConstTensorView document_begins,
                        ConstTensorView history) {
  return {shape, projected.as<T>().data(), history.empty() ? nullptr : history.as<T>().data(),
          document_begins.empty() ? nullptr : document_begins.as<std::int32_t>().data()};
}

}  // namespace

// Rows of channels: taps and sums of a token; with `backward` also the gradients of taps and bias, and the ring.
Tensor mixing_workspace(KernelContext& context, const StateSpaceShape& shape, bool backward) {
  const std::int64_t rows = backward ? 3 * shape.filter + 1 : shape.filter + 1;
  return context.ledger.allocate(Bucket::workspace, DType::float32, rows, shape.channels());
}

WEFT_MULTIVERSION void mix_tokens_forward(KernelContext& context, const StateSpaceShape& shape,
                                          ConstTensorView projected, ConstTensorView weight, ConstTensorView bias,
                                          ConstTensorView document_begins, TensorView history, TensorView mixed) {
  const std::int64_t channels = shape.channels(), length = shape.sequence_length;
  Tensor room = mixing_workspace(context, shape, false);
  float* const taps = room.view().as<float>().data();
  float* const sums = taps + shape.filter * channels;
  with_element_type(
      mixed.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const MixedText<T> text = mixed_text<T>(shape, projected, document_begins, history);
        turn_taps(weight.as<T>().data(), channels, shape.filter, taps);
        T* to = mixed.as<T>().data();
        for (std::int64_t sequence = 0; sequence * length < mixed.rows(); ++sequence) {
          for (std::int64_t token = 0; token < length; ++token, to += channels) {
            filter_token(text, sequence, token, taps, bias.as<T>().data(), sums);
#pragma omp simd
            for (std::int64_t i = 0; i < channels; ++i) assign(to[i], sums[i] * logistic(sums[i]));
          }
          if (!history.empty()) keep_history(text, sequence, history.as<T>().data());
        }
      });
}

// Tokens from last to first: a token's gradient comes from itself and the filter - 1 tokens behind it.
WEFT_MULTIVERSION void mix_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dmixed,
                                           ConstTensorView projected, ConstTensorView weight, ConstTensorView bias,
                                           ConstTensorView document_begins, TensorView dprojected, TensorView dweight,
                                           TensorView dbias) {
  const std::int64_t channels = shape.channels(), filter = shape.filter, length = shape.sequence_length;
  Tensor workspace = mixing_workspace(context, shape, true);
  float* const taps = workspace.view().as<float>().data();
  float* const dtaps = taps + filter * channels;
  float* const ring = dtaps + filter * channels;  // gradients in front of silu, of the last `filter` tokens
  float* const sums = ring + filter * channels;
  float* const bias_sums = dbias.as<float>().data();
  const auto gradient = [=](std::int64_t token) { return ring + token % filter * channels; };
  std::fill(dtaps, ring, 0.0f);
  std::fill(bias_sums, bias_sums + channels, 0.0f);
  with_element_type(
      dmixed.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const MixedText<T> text = mixed_text<T>(shape, projected, document_begins, {});
        turn_taps(weight.as<T>().data(), channels, filter, taps);
        for (std::int64_t sequence = 0; sequence * length < dmixed.rows(); ++sequence) {
          for (std::int64_t token = length - 1; token >= 0; --token) {
            const std::int64_t row = sequence * length + token;
            float* own = gradient(token);
            filter_token(text, sequence, token, taps, bias.as<T>().data(), own);
            const T* dy = dmixed.as<T>().data() + row * channels;
#pragma omp simd
            for (std::int64_t i = 0; i < channels; ++i) {
              const float s = logistic(own[i]);
              own[i] = static_cast<float>(dy[i]) * (s + own[i] * s * (1.0f - s));
              bias_sums[i] += own[i];
            }
            std::fill(sums, sums + channels, 0.0f);
            for (std::int64_t k = 0; k < filter; ++k) {
              float* dtap = dtaps + k * channels;
              const float* tap = taps + k * channels;
              if (const T* x = text.seen(sequence, token, token - (filter - 1) + k)) {
#pragma omp simd
                for (std::int64_t i = 0; i < channels; ++i) dtap[i] += own[i] * static_cast<float>(x[i]);
              }
              const std::int64_t reader = token + filter - 1 - k;
              if (reader >= length || text.seen(sequence, reader, token) == nullptr) continue;
              const float* behind = gradient(reader);
#pragma omp simd
              for (std::int64_t i = 0; i < channels; ++i) sums[i] += tap[i] * behind[i];
            }
            T* to = dprojected.as<T>().data() + row * shape.columns() + shape.x_column();
#pragma omp simd
            for (std::int64_t i = 0; i < channels; ++i) assign(to[i], sums[i]);
          }
        }
      });
  float* to = dweight.as<float>().data();
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t k = 0; k < filter; ++k) *to++ = dtaps[k * channels + channel];
  }
}

}  // namespace weft::cpu
