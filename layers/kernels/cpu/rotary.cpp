#include "layers/kernels/rotary.h"

#include <algorithm>
#include <cmath>

#include "layers/kernels/cpu/rotary_heads.h"

namespace weft {
namespace {

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
    turn_heads(token.q, x, y);
    turn_heads(token.k, x + keys, y + keys);
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
    turn_heads_back(token.q, dy, x, dx, dq_weight);
    turn_heads_back(token.k, dy + keys, x + keys, dx + keys, dk_weight);
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
  const Range all[] = {{0, options.heads.sequence_length}};
  rotary_table(options, all, table);
}

void rotary_table(const RotaryOptions& options, std::span<const Range> runs, TensorView table) {
  const std::int64_t head_dim = options.heads.head_dim, half = head_dim / 2;
  require(table.rows() == options.heads.sequence_length && table.columns() == head_dim,
          "a rotary table has a row for each position");
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(options.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    std::int64_t row = 0;
    for (const Range& run : runs) {
      for (std::int64_t position = run.begin; position < run.begin + run.count; ++position, ++row) {
        require(row < table.rows(), "a rotary table has a row for each position");
        const double angle = static_cast<double>(position) * frequency;
        table.as<float>()[row * head_dim + i] = static_cast<float>(std::cos(angle));
        table.as<float>()[row * head_dim + half + i] = static_cast<float>(std::sin(angle));
      }
    }
    require(row == table.rows(), "a rotary table has a row for each position");
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
