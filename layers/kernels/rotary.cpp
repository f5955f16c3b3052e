#include "layers/kernels/rotary.h"

#include <cmath>

#include "layers/kernels/kernels.h"

namespace weft {
namespace {

void check(const RotaryOptions& options, ConstTensorView qkv) {
  const HeadShape& heads = options.heads;
  require(heads.head_dim % 2 == 0, "rotary embedding turns pairs");
  require(qkv.columns() == heads.columns(), "qkv holds the columns of every head");
  require(options.table.rows() >= heads.sequence_length && options.table.columns() == heads.head_dim,
          "the rotary table covers the sequence");
}

}  // namespace

std::vector<float> rotary_table(const RotaryOptions& options, std::span<const Range> runs) {
  const std::int64_t head_dim = options.heads.head_dim, half = head_dim / 2;
  std::vector<float> table;
  for (const Range& run : runs) {
    for (std::int64_t position = run.begin; position < run.begin + run.count; ++position) {
      const std::size_t row = table.size();
      table.resize(row + static_cast<std::size_t>(head_dim));
      for (std::int64_t i = 0; i < half; ++i) {
        const double frequency = std::pow(options.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        const double angle = static_cast<double>(position) * frequency;
        table[row + static_cast<std::size_t>(i)] = static_cast<float>(std::cos(angle));
        table[row + static_cast<std::size_t>(half + i)] = static_cast<float>(std::sin(angle));
      }
    }
  }
  return table;
}

void rotary_forward(KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                    ConstTensorView k_norm, TensorView rotated) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  check(options, qkv);
  require(rotated.rows() == qkv.rows() && rotated.columns() >= options.heads.value_column(),
          "rotated holds the columns of every head of q and k");
  context.kernels.rotary.forward(context, options, qkv, q_norm, k_norm, rotated);
}

void rotary_backward(KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                     ConstTensorView k_norm, TensorView dqkv, TensorView dq_norm, TensorView dk_norm) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  check(options, dqkv);
  require(qkv.size() == dqkv.size() || (qkv.empty() && q_norm.empty() && k_norm.empty()),
          "one gradient an element of qkv");
  require(dq_norm.size() == q_norm.size() && dk_norm.size() == k_norm.size(), "one gradient a norm weight");
  context.kernels.rotary.backward(context, options, qkv, q_norm, k_norm, dqkv, dq_norm, dk_norm);
}

}  // namespace weft
