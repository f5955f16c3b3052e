#include "layers/kernels/rotary.h"

#include <algorithm>
#include <cmath>

#include "layers/kernels/cpu/vector_math.h"

namespace weft {
namespace {

// Of the pairs (first[i], second[i]) at one position.
struct Angles {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

// The elements of one head in two halves, which are the two sides of its pairs.
template <typename T>
struct Halves {
  explicit Halves(T* head, std::int64_t half) : first(head), second(head + half) {}
  T* first;
  T* second;
};

template <typename T>
WEFT_INLINE float inverse_rms(Halves<const T> x, std::int64_t half, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < half; ++i) {
    const float first(x.first[i]), second(x.second[i]);
    sum += first * first + second * second;
  }
  return 1.0f / std::sqrt(sum / static_cast<float>(2 * half) + eps);
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
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < half; ++i) {
    const float dy_first(dy.first[i]), dy_second(dy.second[i]);
    const float gradient_first = dy_first * angles.cosines[i] + dy_second * angles.sines[i];
    const float gradient_second = dy_second * angles.cosines[i] - dy_first * angles.sines[i];
    const float normal_first = float(x.first[i]) * inverse, normal_second = float(x.second[i]) * inverse;
    dweight.first[i] += gradient_first * normal_first;
    dweight.second[i] += gradient_second * normal_second;
    sum += gradient_first * float(weight.first[i]) * normal_first +
           gradient_second * float(weight.second[i]) * normal_second;
  }
  const float mean = sum / static_cast<float>(2 * half);
  // Turned back a second time rather than stored: dx may be dy.
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

// The heads of one token that share a norm weight (null without QK-norm): all of q, or all of k.
template <typename T>
struct HeadRow {
  std::int64_t heads = 0, head_dim = 0;
  const T* weight = nullptr;
  Angles angles;
  float eps = 0;
};

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
// Head sizes in common use are compiled as constants, which leaves no loop around a head.
template <typename T>
WEFT_INLINE void forward_any_row(const HeadRow<T>& row, const T* x, T* y) {
  if (row.head_dim == 64) return forward_row(row, 32, x, y);
  if (row.head_dim == 128) return forward_row(row, 64, x, y);
  forward_row(row, row.head_dim / 2, x, y);
}
WEFT_MULTIVERSION void forward(const HeadRow<float>& row, const float* x, float* y) {
  forward_any_row(row, x, y);
}
WEFT_MULTIVERSION void forward(const HeadRow<bfloat16>& row, const bfloat16* x, bfloat16* y) {
  forward_any_row(row, x, y);
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
WEFT_MULTIVERSION void backward(const HeadRow<float>& row, const float* dy, const float* x, float* dx, float* dweight) {
  backward_any_row(row, dy, x, dx, dweight);
}
WEFT_MULTIVERSION void backward(const HeadRow<bfloat16>& row, const bfloat16* dy, const bfloat16* x, bfloat16* dx,
                                float* dweight) {
  backward_any_row(row, dy, x, dx, dweight);
}

template <typename T>
const T* weight_data(ConstTensorView weight, std::int64_t head_dim) {
  require(weight.empty() || weight.size() == head_dim, "a norm weight has one element a head dimension");
  return weight.empty() ? nullptr : weight.as<T>().data();
}

// The heads of one token, which stands at one position after the other.
template <typename T>
struct TokenHeads {
  TokenHeads(const RotaryOptions& options, ConstTensorView q_norm, ConstTensorView k_norm)
      : q{options.heads.query_heads,
          options.heads.head_dim,
          weight_data<T>(q_norm, options.heads.head_dim),
          {},
          options.eps},
        k{options.heads.key_value_heads,
          options.heads.head_dim,
          weight_data<T>(k_norm, options.heads.head_dim),
          {},
          options.eps},
        table(options.table.as<float>().data()) {}

  void stand_at(std::int64_t position) {
    const float* cosines = table + position * q.head_dim;
    q.angles = k.angles = {cosines, cosines + q.head_dim / 2};
  }

  HeadRow<T> q, k;
  const float* table;
};

template <typename T>
void forward_tokens(const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm, ConstTensorView k_norm,
                    TensorView rotated) {
  const HeadShape& heads = options.heads;
  const std::int64_t keys = heads.query_heads * heads.head_dim, values = keys + heads.key_value_heads * heads.head_dim;
  TokenHeads<T> token(options, q_norm, k_norm);
  const T* x = qkv.as<T>().data();
  T* y = rotated.as<T>().data();
  for (std::int64_t t = 0; t < qkv.rows(); ++t, x += heads.columns(), y += heads.columns()) {
    token.stand_at(t % heads.sequence_length);
    forward(token.q, x, y);
    forward(token.k, x + keys, y + keys);
    if (x != y) std::copy(x + values, x + heads.columns(), y + values);
  }
}

template <typename T>
void backward_tokens(const RotaryOptions& options, ConstTensorView drotated, ConstTensorView qkv,
                     ConstTensorView q_norm, ConstTensorView k_norm, TensorView dqkv, TensorView dq_norm,
                     TensorView dk_norm) {
  const HeadShape& heads = options.heads;
  const std::int64_t keys = heads.query_heads * heads.head_dim, values = keys + heads.key_value_heads * heads.head_dim;
  TokenHeads<T> token(options, q_norm, k_norm);
  const T* dy = drotated.as<T>().data();
  const T* x = (qkv.empty() ? drotated : qkv).as<T>().data();
  T* dx = dqkv.as<T>().data();
  float* dq_weight = dq_norm.as<float>().data();
  float* dk_weight = dk_norm.as<float>().data();
  for (std::int64_t t = 0; t < drotated.rows(); ++t) {
    token.stand_at(t % heads.sequence_length);
    backward(token.q, dy, x, dx, dq_weight);
    backward(token.k, dy + keys, x + keys, dx + keys, dk_weight);
    if (dy != dx) std::copy(dy + values, dy + heads.columns(), dx + values);
    dy += heads.columns();
    x += heads.columns();
    dx += heads.columns();
  }
}

void check(const RotaryOptions& options, ConstTensorView qkv, ConstTensorView other) {
  const HeadShape& heads = options.heads;
  require(heads.head_dim % 2 == 0, "rotary embedding turns pairs");
  require(qkv.columns() == heads.columns() && other.columns() == heads.columns() && qkv.rows() == other.rows(),
          "qkv holds the columns of every head");
  require(options.table.rows() >= heads.sequence_length && options.table.columns() == heads.head_dim,
          "the rotary table covers the sequence");
}

}  // namespace

void rotary_table(const RotaryOptions& options, TensorView table) {
  const std::int64_t head_dim = options.heads.head_dim, half = head_dim / 2;
  require(table.rows() == options.heads.sequence_length && table.columns() == head_dim,
          "a rotary table has a row for each position");
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(options.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    for (std::int64_t position = 0; position < table.rows(); ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table.as<float>()[position * head_dim + i] = static_cast<float>(std::cos(angle));
      table.as<float>()[position * head_dim + half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void rotary_forward(KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                    ConstTensorView k_norm, TensorView rotated) {
  PhaseClock::Scope scope(context.clock, Phase::elementwise);
  check(options, qkv, rotated);
  if (qkv.dtype() == DType::bfloat16) {
    forward_tokens<bfloat16>(options, qkv, q_norm, k_norm, rotated);
  } else {
    forward_tokens<float>(options, qkv, q_norm, k_norm, rotated);
  }
}

void rotary_backward(KernelContext& context, const RotaryOptions& options, ConstTensorView drotated,
                     ConstTensorView qkv, ConstTensorView q_norm, ConstTensorView k_norm, TensorView dqkv,
                     TensorView dq_norm, TensorView dk_norm) {
  PhaseClock::Scope scope(context.clock, Phase::elementwise);
  check(options, drotated, dqkv);
  require(qkv.size() == drotated.size() || (qkv.empty() && q_norm.empty() && k_norm.empty()),
          "one gradient an element of qkv");
  require(dq_norm.size() == q_norm.size() && dk_norm.size() == k_norm.size(), "one gradient a norm weight");
  if (drotated.dtype() == DType::bfloat16) {
    backward_tokens<bfloat16>(options, drotated, qkv, q_norm, k_norm, dqkv, dq_norm, dk_norm);
  } else {
    backward_tokens<float>(options, drotated, qkv, q_norm, k_norm, dqkv, dq_norm, dk_norm);
  }
}

}  // namespace weft
