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
template <int Rows, typename T>
WEFT_INLINE void add_weight_rows(const T* dy, const T* x, const float* inverse_rms, std::int64_t hidden,
                                 float* dweight) {
#pragma omp simd
  for (std::int64_t i = 0; i < hidden; ++i) {
    float sum = 0.0f;
    for (int row = 0; row < Rows; ++row) {
      const std::int64_t at = row * hidden + i;
      sum += static_cast<float>(dy[at]) * (static_cast<float>(x[at]) * inverse_rms[row]);
    }
    dweight[i] += sum;
  }
}

// Both gradients of a few rows after each other: the second finds them in the cache.
template <int Rows, typename T>
WEFT_INLINE void backward_rows(const T* dy, const T* x, const T* weight, const float* inverse_rms, std::int64_t hidden,
                               const T* residual, T* dx, float* dweight) {
  backward_input_rows(dy, x, weight, inverse_rms, Rows, hidden, residual, dx);
  if (dweight != nullptr) add_weight_rows<Rows>(dy, x, inverse_rms, hidden, dweight);
}
template <typename T>
WEFT_INLINE void backward_all_rows(const T* dy, const T* x, const T* weight, const float* inverse_rms,
                                   std::int64_t rows, std::int64_t hidden, const T* residual, T* dx, float* dweight) {
  constexpr int block = 8;
  const auto at = [=](const T* matrix, std::int64_t row) __attribute__((always_inline)) {
    return matrix == nullptr ? nullptr : matrix + row * hidden;
  };
  std::int64_t row = 0;
  for (; row + block <= rows; row += block) {
    backward_rows<block>(at(dy, row), at(x, row), weight, inverse_rms + row, hidden, at(residual, row),
                         dx + row * hidden, dweight);
  }
  for (; row < rows; ++row) {
    backward_rows<1>(at(dy, row), at(x, row), weight, inverse_rms + row, hidden, at(residual, row), dx + row * hidden,
                     dweight);
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

WEFT_MULTIVERSION void rms_norm_backward(KernelContext&, ConstTensorView dy, ConstTensorView x, ConstTensorView weight,
                                         ConstTensorView inverse_rms, ConstTensorView residual, TensorView dx,
                                         TensorView dweight) {
  std::ranges::fill(dweight.as<float>(), 0.0f);
  with_element_type(
      x.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        backward_all_rows(dy.as<T>().data(), x.as<T>().data(), weight.as<T>().data(), inverse_rms.as<float>().data(),
                          x.rows(), x.columns(), residual.empty() ? nullptr : residual.as<T>().data(),
                          dx.as<T>().data(), dweight.empty() ? nullptr : dweight.as<float>().data());
      });
}

const RmsNormKernels rms_norm_kernels = {rms_norm_forward, rms_norm_backward};

}  // namespace weft::cpu
