#include "layers/kernels/token_kernels.h"

#include <cmath>

#include "layers/kernels/kernels.h"

namespace weft {

namespace {

void require_shapes(ConstTensorView like, ConstTensorView x, ConstTensorView inverse_rms) {
  require(like.rows() == x.rows() && like.columns() == x.columns(), "both sides of a norm have one shape");
  require(inverse_rms.size() == x.rows(), "a norm keeps one inverse root mean square a row");
}

}  // namespace

void rms_norm_forward(KernelContext& context, ConstTensorView x, ConstTensorView weight, float eps, TensorView y,
                      TensorView inverse_rms) {
  require_shapes(y, x, inverse_rms);
  require(weight.size() == x.columns(), "a norm has one weight a column");
  run_elementwise(context, context.kernels.rms_norm_forward, x, weight, eps, y, inverse_rms);
}

void rms_norm_backward(KernelContext& context, ConstTensorView dy, ConstTensorView x, ConstTensorView weight,
                       ConstTensorView inverse_rms, ConstTensorView residual, TensorView dx, TensorView dweight) {
  require_shapes(dy, x, inverse_rms);
  require_shapes(dx, x, inverse_rms);
  if (!residual.empty()) require_shapes(residual, x, inverse_rms);
  require(weight.size() == x.columns(), "a norm has one weight a column");
  require(dweight.empty() || dweight.size() == x.columns(), "a norm has one gradient a weight");
  run_elementwise(context, context.kernels.rms_norm_backward, dy, x, weight, inverse_rms, residual, dx, dweight);
}

void embedding_forward(KernelContext& context, ConstTensorView ids, ConstTensorView table, std::int64_t row_begin,
                       TensorView y) {
  require(ids.size() == y.rows(), "an embedding has one row an id");
  require(y.columns() == table.columns() && y.dtype() == table.dtype(), "an embedding copies rows of its table");
  if (!y.empty()) run_elementwise(context, context.kernels.embedding_forward, ids, table, row_begin, y);
}

void embedding_backward(KernelContext& context, ConstTensorView ids, ConstTensorView dy, std::int64_t row_begin,
                        TensorView dtable) {
  require(ids.size() == dy.rows(), "an embedding has one row an id");
  require(dy.columns() == dtable.columns(), "an embedding is as wide as its table");
  if (dy.empty() || dtable.empty()) return;
  run_elementwise(context, context.kernels.embedding_backward, ids, dy, row_begin, dtable);
}

void swiglu_forward(KernelContext& context, ConstTensorView gate_up, ConstTensorView weights, TensorView y) {
  require(gate_up.rows() == y.rows() && gate_up.columns() == 2 * y.columns(), "gate and up are as wide as y each");
  require(weights.empty() || weights.size() == y.rows(), "every token has a weight or none has one");
  run_elementwise(context, context.kernels.swiglu_forward, gate_up, weights, y);
}

void swiglu_backward(KernelContext& context, ConstTensorView dy, ConstTensorView gate_up, ConstTensorView weights,
                     TensorView dgate_up, TensorView dweights) {
  require(gate_up.rows() == dy.rows() && gate_up.columns() == 2 * dy.columns(), "gate and up are as wide as y each");
  require(dgate_up.rows() == gate_up.rows() && dgate_up.columns() == gate_up.columns(),
          "a gradient has the shape of its tensor");
  require(weights.empty() || weights.size() == dy.rows(), "every token has a weight or none has one");
  require(dweights.size() == weights.size(), "every weight has a gradient");
  run_elementwise(context, context.kernels.swiglu_backward, dy, gate_up, weights, dgate_up, dweights);
}

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
  check(options, qkv);
  require(rotated.rows() == qkv.rows() && rotated.columns() >= options.heads.value_column(),
          "rotated holds the columns of every head of q and k");
  run_elementwise(context, context.kernels.rotary_forward, options, qkv, q_norm, k_norm, rotated);
}

void rotary_backward(KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, ConstTensorView q_norm,
                     ConstTensorView k_norm, TensorView dqkv, TensorView dq_norm, TensorView dk_norm) {
  check(options, dqkv);
  require(qkv.size() == dqkv.size() || (qkv.empty() && q_norm.empty() && k_norm.empty()),
          "one gradient an element of qkv");
  require(dq_norm.size() == q_norm.size() && dk_norm.size() == k_norm.size(), "one gradient a norm weight");
  run_elementwise(context, context.kernels.rotary_backward, options, qkv, q_norm, k_norm, dqkv, dq_norm, dk_norm);
}

void vocabulary_sums(KernelContext& context, ConstTensorView logits, ConstTensorView targets, std::int64_t begin,
                     TensorView maximum, TensorView sums) {
  const std::int64_t tokens = logits.rows();
  require(maximum.size() == tokens && targets.size() == tokens && sums.size() == 2 * tokens,
          "one maximum, one target and two sums a token");
  run_elementwise(context, context.kernels.vocabulary_sums, logits, targets, begin, maximum, sums);
}

void shift_vocabulary_sums(KernelContext& context, ConstTensorView of_shard, ConstTensorView maximum,
                           ConstTensorView targets, Range entries, TensorView sums) {
  const std::int64_t tokens = maximum.size();
  require(of_shard.size() == tokens && targets.size() == tokens && sums.size() == 2 * tokens,
          "two maxima, one target and two sums a token");
  run_elementwise(context, context.kernels.shift_vocabulary_sums, of_shard, maximum, targets, entries, sums);
}

void cross_entropy_gradient(KernelContext& context, ConstTensorView logits, ConstTensorView maximum,
                            ConstTensorView sums, ConstTensorView targets, std::int64_t begin, float factor,
                            TensorView dlogits, TensorView loss) {
  const std::int64_t tokens = logits.rows();
  require(maximum.size() == tokens && targets.size() == tokens && sums.size() == 2 * tokens,
          "one maximum, one target and two sums a token");
  require(dlogits.rows() == tokens && dlogits.columns() == logits.columns(), "one gradient a logit");
  require(loss.size() <= 1, "the losses of all tokens have one sum");
  run_elementwise(context, context.kernels.cross_entropy_gradient, logits, maximum, sums, targets, begin, factor,
                  dlogits, loss);
}

}  // namespace weft
