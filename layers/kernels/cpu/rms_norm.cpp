#include "layers/kernels/cpu/kernels.h"

#include <algorithm>
#include <cmath>

#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

// With n = x * r, r = 1 / sqrt(mean(x^2) + eps) and g = w * dy: dr/dx_i = -r^3 x_i / hidden, hence
//   dx_i = r * (g_i - n_i * mean(g * n)).
template <typename T>
WEFT_INLINE void backward_input_rows(const T* dy, const T* x, const T* weight, const float* inverse_rms,
                                     std::int64_t rows, std::int64_t hidden, const T* residual, T* dx) {
  for (std::int64_t row = 0; row < rows; ++row, dy += hidden, x += hidden, dx += hidden) {
    const float dot = lane_sum(
        hidden, [=](std::int64_t i) __attribute__((always_inline)) {
          return static_cast<float>(dy[i]) * static_cast<float>(weight[i]) * static_cast<float>(x[i]);
        });
    const float inverse = inverse_rms[row];
    const float along_x = dot * inverse * inverse / static_cast<float>(hidden);
    const auto gradient = [=](std::int64_t i) __attribute__((always_inline)) {
      const float g = static_cast<float>(dy[i]) * static_cast<float>(weight[i]);
      return inverse * (g - static_cast<float>(x[i]) * along_x);
    };
    if (residual == nullptr) {
#pragma omp simd
      for (std::int64_t i = 0; i < hidden; ++i) assign(dx[i], gradient(i));
      continue;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < hidden; ++i) assign(dx[i], static_cast<float>(residual[i]) + gradient(i));
    residual += hidden;
  }
}

// Adds `Rows` rows at a time, so that dweight is read and written once for all of them. A sum in blocks loses less
// precision than one long chain.
template <std::int64_t Rows, typename T>
WEFT_INLINE void add_weight_rows(const T* dy, const T* x, const float* inverse_rms, std::int64_t hidden,
                                 float* dweight) {
#pragma omp simd
  for (std::int64_t i = 0; i < hidden; ++i) {
    float sum = 0.0f;
    for (std::int64_t row = 0; row < Rows; ++row) {
      const std::int64_t at = row * hidden + i;
      sum += static_cast<float>(dy[at]) * (static_cast<float>(x[at]) * inverse_rms[row]);
    }
    dweight[i] += sum;
  }
}

}  // namespace

WEFT_MULTIVERSION void rms_norm_forward(KernelContext&, ConstTensorView x, ConstTensorView weight, float eps,
                                        TensorView y, TensorView inverse_rms) {
  const std::int64_t rows = x.rows(), hidden = x.columns();
  float* const inverses = inverse_rms.as<float>().data();
  with_element_type(
      x.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const T *from = x.as<T>().data(), *gain = weight.as<T>().data();
        T* to = y.as<T>().data();
        for (std::int64_t row = 0; row < rows; ++row, from += hidden, to += hidden) {
          const float squares = lane_sum(
              hidden, [from](std::int64_t i) __attribute__((always_inline)) {
                const float value = static_cast<float>(from[i]);
                return value * value;
              });
          const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + eps);
          inverses[row] = inverse;
#pragma omp simd
          for (std::int64_t i = 0; i < hidden; ++i) {
            assign(to[i], static_cast<float>(from[i]) * inverse * static_cast<float>(gain[i]));
          }
        }
      });
}

// Both gradients of a few rows after each other: the second finds them in the cache.
WEFT_MULTIVERSION void rms_norm_backward(KernelContext&, ConstTensorView dy, ConstTensorView x, ConstTensorView weight,
                                         ConstTensorView inverse_rms, ConstTensorView residual, TensorView dx,
                                         TensorView dweight) {
  constexpr std::int64_t block = 8;
  const std::int64_t rows = x.rows(), hidden = x.columns();
  const float* const inverses = inverse_rms.as<float>().data();
  float* const dgain = dweight.as<float>().data();
  std::ranges::fill(dweight.as<float>(), 0.0f);
  with_element_type(
      x.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const T *gradient = dy.as<T>().data(), *from = x.as<T>().data(), *gain = weight.as<T>().data();
        const T* added = residual.empty() ? nullptr : residual.as<T>().data();
        T* to = dx.as<T>().data();
        for (std::int64_t row = 0, count = block; row < rows; row += count) {
          if (row + block > rows) count = 1;
          backward_input_rows(gradient, from, gain, inverses + row, count, hidden, added, to);
          if (!dweight.empty() && count == block) add_weight_rows<block>(gradient, from, inverses + row, hidden, dgain);
          if (!dweight.empty() && count == 1) add_weight_rows<1>(gradient, from, inverses + row, hidden, dgain);
          gradient += count * hidden, from += count * hidden, to += count * hidden;
          if (added != nullptr) added += count * hidden;
        }
      });
}

}  // namespace weft::cpu
