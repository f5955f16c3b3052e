#include "layers/kernels/cpu/kernels.h"

#include <algorithm>
#include <cmath>

#include "layers/kernels/cpu/rotary_heads.h"
#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

template <typename T>
const T* weight_data(ConstTensorView weight, std::int64_t head_dim) {
  require(weight.empty() || weight.size() == head_dim, "a norm weight has one element a head dimension");
  return weight.empty() ? nullptr : weight.as<T>().data();
}

// The heads of one token at a time; `stand_at` sets the token's position.
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
  const std::int64_t keys = options.heads.key_column();
  TokenHeads<T> token(options, q_norm, k_norm);
  const T* x = qkv.as<T>().data();
  T* y = rotated.as<T>().data();
  for (std::int64_t t = 0; t < qkv.rows(); ++t, x += qkv.columns(), y += rotated.columns()) {
    token.stand_at(t % options.heads.sequence_length);
    turn_heads(token.q, x, y);
    turn_heads(token.k, x + keys, y + keys);
  }
}

template <typename T>
void backward_tokens(const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm, ConstTensorView k_norm,
                     TensorView dqkv, TensorView dq_norm, TensorView dk_norm) {
  const std::int64_t keys = options.heads.key_column();
  TokenHeads<T> token(options, q_norm, k_norm);
  T* dx = dqkv.as<T>().data();
  const T* x = qkv.empty() ? dx : qkv.as<T>().data();
  const std::span<float> dq_weight = dq_norm.as<float>(), dk_weight = dk_norm.as<float>();
  for (std::span<float> gradient : {dq_weight, dk_weight}) std::ranges::fill(gradient, 0.0f);
  for (std::int64_t t = 0; t < dqkv.rows(); ++t, x += dqkv.columns(), dx += dqkv.columns()) {
    token.stand_at(t % options.heads.sequence_length);
    turn_heads_back(token.q, dx, x, dx, dq_weight.data());
    turn_heads_back(token.k, dx + keys, x + keys, dx + keys, dk_weight.data());
  }
}

}  // namespace

void rotary_forward(KernelContext&, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                    ConstTensorView k_norm, TensorView rotated) {
  with_element_type(qkv.dtype(),
                    [&](auto element) { forward_tokens<decltype(element)>(options, qkv, q_norm, k_norm, rotated); });
}

void rotary_backward(KernelContext&, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                     ConstTensorView k_norm, TensorView dqkv, TensorView dq_norm, TensorView dk_norm) {
  with_element_type(dqkv.dtype(), [&](auto element) {
    backward_tokens<decltype(element)>(options, qkv, q_norm, k_norm, dqkv, dq_norm, dk_norm);
  });
}

const RotaryKernels rotary_kernels = {rotary_forward, rotary_backward};

}  // namespace weft::cpu
