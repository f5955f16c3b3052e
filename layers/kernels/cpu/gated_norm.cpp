// The norm behind a state-space scan.
#include <cmath>
#include <cstdint>

#include "layers/kernels/cpu/kernels.h"
#include "layers/kernels/state_space.h"
#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

// A group's columns of one token. silu(z) y is computed where it is needed.
template <typename T>
struct GatedRow {
  const T *y, *z;

  WEFT_INLINE float operator[](std::int64_t i) const {
    const float gate = static_cast<float>(z[i]);
    return static_cast<float>(y[i]) * gate * logistic(gate);
  }
};

template <typename T>
WEFT_INLINE void norm_gated_rows(const StateSpaceShape& shape, const T* y, const T* projected, const T* weight,
                                 float eps, std::int64_t rows, T* out, float* inverse_rms) {
  const std::int64_t width = shape.inner() / shape.groups;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t group = 0; group < shape.groups; ++group) {
      const std::int64_t column = group * width, at = row * shape.inner() + column;
      const GatedRow<T> gated = {y + at, projected + row * shape.columns() + column};
      const float squares = lane_sum(
          width, [gated](std::int64_t i) __attribute__((always_inline)) {
            const float value = gated[i];
            return value * value;
          });
      const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
      inverse_rms[row * shape.groups + group] = inverse;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) {
        assign(out[at + i], gated[i] * inverse * static_cast<float>(weight[column + i]));
      }
    }
  }
}

// With g = y silu(z), r the inverse root mean square and e = w dout, as in an RMSNorm: dg = r (e - g mean(e g) r^2).
// Then dy = dg silu(z) and dz = dg y silu'(z). Each element is read before its gradient overwrites it.
template <typename T>
WEFT_INLINE void gated_backward_rows(const StateSpaceShape& shape, const T* dout, const T* y, const T* projected,
                                     const T* weight, const float* inverse_rms, std::int64_t rows, T* dy, T* dprojected,
                                     float* dweight) {
  const std::int64_t width = shape.inner() / shape.groups;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t group = 0; group < shape.groups; ++group) {
      const std::int64_t column = group * width, at = row * shape.inner() + column;
      const GatedRow<T> gated = {y + at, projected + row * shape.columns() + column};
      const T *gradient = dout + at, *gain = weight + column;
      const float dot = lane_sum(
          width, [=](std::int64_t i) __attribute__((always_inline)) {
            return static_cast<float>(gradient[i]) * static_cast<float>(gain[i]) * gated[i];
          });
      const float inverse = inverse_rms[row * shape.groups + group];
      const float along = dot * inverse * inverse / static_cast<float>(width);
      T* dz = dprojected + row * shape.columns() + column;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) {
        const float of_y = static_cast<float>(gated.y[i]), gate = static_cast<float>(gated.z[i]);
        const float s = logistic(gate), silu = gate * s, value = of_y * silu;
        const float of_out = static_cast<float>(gradient[i]);
        const float dgated = inverse * (of_out * static_cast<float>(gain[i]) - value * along);
        dweight[column + i] += of_out * (value * inverse);
        assign(dy[at + i], dgated * silu);
        assign(dz[i], dgated * of_y * (s + silu * (1.0f - s)));
      }
    }
  }
}

}  // namespace

WEFT_MULTIVERSION void gated_norm_forward(KernelContext&, const StateSpaceShape& shape, ConstTensorView y,
                                          ConstTensorView projected, ConstTensorView weight, float eps, TensorView out,
                                          TensorView inverse_rms) {
  with_element_type(
      y.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        norm_gated_rows(shape, y.as<T>().data(), projected.as<T>().data(), weight.as<T>().data(), eps, y.rows(),
                        out.as<T>().data(), inverse_rms.as<float>().data());
      });
}

WEFT_MULTIVERSION void gated_norm_backward(KernelContext&, const StateSpaceShape& shape, ConstTensorView dout,
                                           ConstTensorView y, ConstTensorView projected, ConstTensorView weight,
                                           ConstTensorView inverse_rms, TensorView dy, TensorView dprojected,
                                           TensorView dweight) {
  std::ranges::fill(dweight.as<float>(), 0.0f);
  with_element_type(
      y.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        gated_backward_rows(shape, dout.as<T>().data(), y.as<T>().data(), projected.as<T>().data(),
                            weight.as<T>().data(), inverse_rms.as<float>().data(), y.rows(), dy.as<T>().data(),
                            dprojected.as<T>().data(), dweight.as<float>().data());
      });
}

}  // namespace weft::cpu
