#include "layers/kernels/cpu/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

// Angles of the pairs (first[i], second[i]) at one position.
struct Angles {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

// The heads of a token that share a norm weight (null without QK-norm): all of q, or all of k.
template <typename T>
struct HeadRow {
  std::int64_t column = 0, heads = 0, head_dim = 0;
  const T* weight = nullptr;
  float* dweight = nullptr;
  float eps = 0;
};

// The elements of one head in two halves, the first and second elements of its pairs.
template <typename T>
struct Halves {
  explicit Halves(T* head, std::int64_t half) : first(head), second(head + half) {}
  T* first;
  T* second;
};

// A pair of a head: its elements number i of both halves, in float32.
struct Pair {
  float first, second;
};
template <typename T>
WEFT_INLINE Pair pair_of(Halves<T> head, std::int64_t i) {
  return {static_cast<float>(head.first[i]), static_cast<float>(head.second[i])};
}
template <typename T>
WEFT_INLINE void store(Pair pair, Halves<T> head, std::int64_t i) {
  assign(head.first[i], pair.first);
  assign(head.second[i], pair.second);
}
WEFT_INLINE Pair turned(Pair x, Angles angles, std::int64_t i) {
  return {x.first * angles.cosines[i] - x.second * angles.sines[i],
          x.second * angles.cosines[i] + x.first * angles.sines[i]};
}
WEFT_INLINE Pair turned_back(Pair y, Angles angles, std::int64_t i) {
  return {y.first * angles.cosines[i] + y.second * angles.sines[i],
          y.second * angles.cosines[i] - y.first * angles.sines[i]};
}
WEFT_INLINE Pair scaled(Pair x, float scale) {
  return {x.first * scale, x.second * scale};
}

template <typename T>
WEFT_INLINE float inverse_rms(Halves<const T> x, std::int64_t half, float eps) {
  const float square_sum = lane_sum(
      half, [&](std::int64_t i) __attribute__((always_inline)) {
        const Pair pair = pair_of(x, i);
        return pair.first * pair.first + pair.second * pair.second;
      });
  return 1.0f / std::sqrt(square_sum / static_cast<float>(2 * half) + eps);
}

template <typename T>
WEFT_INLINE void normalise_and_turn(Halves<const T> x, Halves<const T> weight, Angles angles, std::int64_t half,
                                    float eps, Halves<T> y) {
  const float inverse = inverse_rms(x, half, eps);
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const Pair normal = scaled(pair_of(x, i), inverse), gain = pair_of(weight, i);
    store(turned({normal.first * gain.first, normal.second * gain.second}, angles, i), y, i);
  }
}

// With n = x / rms and g the gradient turned back: dw += g n and dx = (g w - n mean(g w n)) / rms.
template <typename T>
WEFT_INLINE void turn_back_through_norm(Halves<const T> dy, Halves<const T> x, Halves<const T> weight, Angles angles,
                                        std::int64_t half, float eps, Halves<T> dx, Halves<float> dweight) {
  const float inverse = inverse_rms(x, half, eps);
  const float total = lane_sum(
      half, [&](std::int64_t i) __attribute__((always_inline)) {
        const Pair gradient = turned_back(pair_of(dy, i), angles, i);
        const Pair normal = scaled(pair_of(x, i), inverse), gain = pair_of(weight, i);
        dweight.first[i] += gradient.first * normal.first;
        dweight.second[i] += gradient.second * normal.second;
        return gradient.first * gain.first * normal.first + gradient.second * gain.second * normal.second;
      });
  const float mean = total / static_cast<float>(2 * half);
  // The inverse rotation is computed again instead of stored, because dx may be dy.
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const Pair gradient = turned_back(pair_of(dy, i), angles, i);
    const Pair normal = scaled(pair_of(x, i), inverse), gain = pair_of(weight, i);
    store({inverse * (gradient.first * gain.first - normal.first * mean),
           inverse * (gradient.second * gain.second - normal.second * mean)},
          dx, i);
  }
}

// Calls `with` with half the size of a head; common ones are constants, so that loops over a head are unrolled.
template <typename With>
WEFT_INLINE void with_half(std::int64_t head_dim, With with) {
  if (head_dim == 64) return with(std::integral_constant<std::int64_t, 32>());
  if (head_dim == 128) return with(std::integral_constant<std::int64_t, 64>());
  with(head_dim / 2);
}

// y: the heads of x, normalised if there is a weight, and rotated. y may be x.
template <typename T>
WEFT_INLINE void turn_heads(const HeadRow<T>& row, Angles angles, const T* x, T* y) {
  with_half(
      row.head_dim, [&](auto half) __attribute__((always_inline)) {
        for (std::int64_t begin = 0; begin < row.heads * 2 * half; begin += 2 * half) {
          const Halves<const T> from(x + begin, half);
          const Halves<T> to(y + begin, half);
          if (row.weight == nullptr) {
#pragma omp simd
            for (std::int64_t i = 0; i < half; ++i) store(turned(pair_of(from, i), angles, i), to, i);
          } else {
            normalise_and_turn(from, Halves<const T>(row.weight, half), angles, half, row.eps, to);
          }
        }
      });
}

// `gradient`: from that of y to that of x. x is read and dweight is added to only if there is a norm weight.
template <typename T>
WEFT_INLINE void turn_heads_back(const HeadRow<T>& row, Angles angles, const T* x, T* gradient) {
  with_half(
      row.head_dim, [&](auto half) __attribute__((always_inline)) {
        for (std::int64_t begin = 0; begin < row.heads * 2 * half; begin += 2 * half) {
          const Halves<T> to(gradient + begin, half);
          const Halves<const T> from(gradient + begin, half);
          if (row.weight == nullptr) {
#pragma omp simd
            for (std::int64_t i = 0; i < half; ++i) store(turned_back(pair_of(from, i), angles, i), to, i);
          } else {
            turn_back_through_norm(from, Halves<const T>(x + begin, half), Halves<const T>(row.weight, half), angles,
                                   half, row.eps, to, Halves<float>(row.dweight, half));
          }
        }
      });
}

template <typename T>
std::array<HeadRow<T>, 2> head_rows(const RotaryOptions& options, ConstTensorView q_norm, ConstTensorView k_norm) {
  const HeadShape& heads = options.heads;
  const auto row = [&](std::int64_t column, std::int64_t count, ConstTensorView weight) {
    require(weight.empty() || weight.size() == heads.head_dim, "a norm weight has one element a head dimension");
    return HeadRow<T>{.column = column,
                      .heads = count,
                      .head_dim = heads.head_dim,
                      .weight = weight.empty() ? nullptr : weight.as<T>().data(),
                      .eps = options.eps};
  };
  return {row(0, heads.query_heads, q_norm), row(heads.key_column(), heads.key_value_heads, k_norm)};
}

WEFT_INLINE Angles angles_at(const RotaryOptions& options, std::int64_t token) {
  const std::int64_t position = token % options.heads.sequence_length;
  const float* cosines = options.table.as<float>().data() + position * options.heads.head_dim;
  return {cosines, cosines + options.heads.head_dim / 2};
}

}  // namespace

WEFT_MULTIVERSION void rotary_forward(KernelContext&, const RotaryOptions& options, ConstTensorView qkv,
                                      ConstTensorView q_norm, ConstTensorView k_norm, TensorView rotated) {
  with_element_type(
      qkv.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const auto rows = head_rows<T>(options, q_norm, k_norm);
        const T* x = qkv.as<T>().data();
        T* y = rotated.as<T>().data();
        for (std::int64_t t = 0; t < qkv.rows(); ++t, x += qkv.columns(), y += rotated.columns()) {
          const Angles angles = angles_at(options, t);
          for (const HeadRow<T>& row : rows) turn_heads(row, angles, x + row.column, y + row.column);
        }
      });
}

WEFT_MULTIVERSION void rotary_backward(KernelContext&, const RotaryOptions& options, ConstTensorView qkv,
                                       ConstTensorView q_norm, ConstTensorView k_norm, TensorView dqkv,
                                       TensorView dq_norm, TensorView dk_norm) {
  for (const TensorView gradient : {dq_norm, dk_norm}) std::ranges::fill(gradient.as<float>(), 0.0f);
  with_element_type(
      dqkv.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        auto rows = head_rows<T>(options, q_norm, k_norm);
        rows[0].dweight = dq_norm.as<float>().data();
        rows[1].dweight = dk_norm.as<float>().data();
        T* dx = dqkv.as<T>().data();
        const T* x = qkv.empty() ? dx : qkv.as<T>().data();
        for (std::int64_t t = 0; t < dqkv.rows(); ++t, x += dqkv.columns(), dx += dqkv.columns()) {
          const Angles angles = angles_at(options, t);
          for (const HeadRow<T>& row : rows) turn_heads_back(row, angles, x + row.column, dx + row.column);
        }
      });
}

}  // namespace weft::cpu
