#include "layers/kernels/cpu/rotary_heads.h"

#include <cmath>

#include "layers/kernels/cpu/vector_math.h"

namespace weft {
namespace {

// The elements of one head in two halves, the first and second elements of its pairs.
template <typename T>
struct Halves {
  explicit Halves(T* head, std::int64_t half) : first(head), second(head + half) {}
  T* first;
  T* second;
};

template <typename T>
WEFT_INLINE float inverse_rms(Halves<const T> x, std::int64_t half, float eps) {
  const float square_sum = lane_sum(
      half, [&](std::int64_t i) __attribute__((always_inline)) {
        const float first(x.first[i]), second(x.second[i]);
        return first * first + second * second;
      });
  return 1.0f / std::sqrt(square_sum / static_cast<float>(2 * half) + eps);
}

template <typename T>
WEFT_INLINE void turn(Halves<const T> x, Angles angles, std::int64_t half, Halves<T> y) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float first(x.first[i]), second(x.second[i]);
    assign(y.first[i], first * angles.cosines[i] - second * angles.sines[i]);
    assign(y.second[i], second * angles.cosines[i] + first * angles.sines[i]);
  }
}

template <typename T>
WEFT_INLINE void normalise_and_turn(Halves<const T> x, Halves<const T> weight, Angles angles, std::int64_t half,
                                    float eps, Halves<T> y) {
  const float inverse = inverse_rms(x, half, eps);
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float first = float(x.first[i]) * inverse * float(weight.first[i]);
    const float second = float(x.second[i]) * inverse * float(weight.second[i]);
    assign(y.first[i], first * angles.cosines[i] - second * angles.sines[i]);
    assign(y.second[i], second * angles.cosines[i] + first * angles.sines[i]);
  }
}

template <typename T>
WEFT_INLINE void turn_back(Halves<const T> dy, Angles angles, std::int64_t half, Halves<T> dx) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float first(dy.first[i]), second(dy.second[i]);
    assign(dx.first[i], first * angles.cosines[i] + second * angles.sines[i]);
    assign(dx.second[i], second * angles.cosines[i] - first * angles.sines[i]);
  }
}

// With n = x / rms and g the gradient turned back: dw += g n and dx = (g w - n mean(g w n)) / rms.
template <typename T>
WEFT_INLINE void turn_back_through_norm(Halves<const T> dy, Halves<const T> x, Halves<const T> weight, Angles angles,
                                        std::int64_t half, float eps, Halves<T> dx, Halves<float> dweight) {
  const float inverse = inverse_rms(x, half, eps);
  const float total = lane_sum(
      half, [&](std::int64_t i) __attribute__((always_inline)) {
        const float dy_first(dy.first[i]), dy_second(dy.second[i]);
        const float gradient_first = dy_first * angles.cosines[i] + dy_second * angles.sines[i];
        const float gradient_second = dy_second * angles.cosines[i] - dy_first * angles.sines[i];
        const float normal_first = float(x.first[i]) * inverse, normal_second = float(x.second[i]) * inverse;
        dweight.first[i] += gradient_first * normal_first;
        dweight.second[i] += gradient_second * normal_second;
        return gradient_first * float(weight.first[i]) * normal_first +
               gradient_second * float(weight.second[i]) * normal_second;
      });
  const float mean = total / static_cast<float>(2 * half);
  // The inverse rotation is computed again instead of stored, because dx may be dy.
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float dy_first(dy.first[i]), dy_second(dy.second[i]);
    const float gradient_first = dy_first * angles.cosines[i] + dy_second * angles.sines[i];
    const float gradient_second = dy_second * angles.cosines[i] - dy_first * angles.sines[i];
    const float normal_first = float(x.first[i]) * inverse, normal_second = float(x.second[i]) * inverse;
    assign(dx.first[i], inverse * (gradient_first * float(weight.first[i]) - normal_first * mean));
    assign(dx.second[i], inverse * (gradient_second * float(weight.second[i]) - normal_second * mean));
  }
}

template <typename T>
WEFT_INLINE void forward_row(const HeadRow<T>& row, std::int64_t half, const T* x, T* y) {
  for (std::int64_t begin = 0; begin < row.heads * 2 * half; begin += 2 * half) {
    const Halves<const T> from(x + begin, half);
    const Halves<T> to(y + begin, half);
    if (row.weight == nullptr) {
      turn(from, row.angles, half, to);
    } else {
      normalise_and_turn(from, Halves<const T>(row.weight, half), row.angles, half, row.eps, to);
    }
  }
}
// Common head sizes are compile-time constants, so the loops over a head's elements are unrolled.
template <typename T>
WEFT_INLINE void forward_any_row(const HeadRow<T>& row, const T* x, T* y) {
  if (row.head_dim == 64) return forward_row(row, 32, x, y);
  if (row.head_dim == 128) return forward_row(row, 64, x, y);
  forward_row(row, row.head_dim / 2, x, y);
}

template <typename T>
WEFT_INLINE void backward_row(const HeadRow<T>& row, std::int64_t half, const T* dy, const T* x, T* dx,
                              float* dweight) {
  for (std::int64_t begin = 0; begin < row.heads * 2 * half; begin += 2 * half) {
    const Halves<const T> from(dy + begin, half);
    const Halves<T> to(dx + begin, half);
    if (row.weight == nullptr) {
      turn_back(from, row.angles, half, to);
    } else {
      turn_back_through_norm(from, Halves<const T>(x + begin, half), Halves<const T>(row.weight, half), row.angles,
                             half, row.eps, to, Halves<float>(dweight, half));
    }
  }
}
template <typename T>
WEFT_INLINE void backward_any_row(const HeadRow<T>& row, const T* dy, const T* x, T* dx, float* dweight) {
  if (row.head_dim == 64) return backward_row(row, 32, dy, x, dx, dweight);
  if (row.head_dim == 128) return backward_row(row, 64, dy, x, dx, dweight);
  backward_row(row, row.head_dim / 2, dy, x, dx, dweight);
}

}  // namespace

WEFT_MULTIVERSION void turn_heads(const HeadRow<float>& row, const float* x, float* y) {
  forward_any_row(row, x, y);
}
WEFT_MULTIVERSION void turn_heads(const HeadRow<bfloat16>& row, const bfloat16* x, bfloat16* y) {
  forward_any_row(row, x, y);
}
WEFT_MULTIVERSION void turn_heads(const HeadRow<float16>& row, const float16* x, float16* y) {
  forward_any_row(row, x, y);
}
WEFT_MULTIVERSION void turn_heads_back(const HeadRow<float>& row, const float* dy, const float* x, float* dx,
                                       float* dweight) {
  backward_any_row(row, dy, x, dx, dweight);
}
WEFT_MULTIVERSION void turn_heads_back(const HeadRow<bfloat16>& row, const bfloat16* dy, const bfloat16* x,
                                       bfloat16* dx, float* dweight) {
  backward_any_row(row, dy, x, dx, dweight);
}
WEFT_MULTIVERSION void turn_heads_back(const HeadRow<float16>& row, const float16* dy, const float16* x, float16* dx,
                                       float* dweight) {
  backward_any_row(row, dy, x, dx, dweight);
}

}  // namespace weft
