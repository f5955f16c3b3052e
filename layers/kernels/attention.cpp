#include "layers/kernels/attention.h"

#include "layers/kernels/kernels.h"

namespace weft {
namespace {

void check(const HeadShape& heads, QueryRuns runs, ConstTensorView q, ConstTensorView kv, ConstTensorView out,
           ConstTensorView log_sum_exp) {
  require(heads.key_value_heads > 0 && heads.query_heads % heads.key_value_heads == 0,
          "query heads share key-value heads evenly");
  require(heads.sequence_length > 0 && kv.rows() % heads.sequence_length == 0, "tokens come in whole sequences");
  std::int64_t end = 0;
  for (const Range& run : runs) {
    require(run.begin >= end && run.count >= 0, "runs of queries ascend");
    end = run.begin + run.count;
  }
  require(end <= heads.sequence_length, "queries stand inside their sequence");
  require(q.rows() == kv.rows() / heads.sequence_length * query_rows(runs),
          "every sequence has the queries of the runs");
  require(q.columns() >= heads.query_heads * heads.head_dim, "q holds the columns of every query head");
  require(kv.columns() >= 2 * heads.key_value_heads * heads.head_dim && kv.dtype() == q.dtype(),
          "kv holds the columns of every key and value head");
  require(out.rows() == q.rows() && out.columns() == heads.query_heads * heads.head_dim && out.dtype() == q.dtype(),
          "the output holds the columns of every query head");
  require(log_sum_exp.rows() == q.rows() && log_sum_exp.columns() == heads.query_heads,
          "one log-sum-exp a token and query head");
}

}  // namespace

std::int64_t query_rows(QueryRuns runs) {
  std::int64_t rows = 0;
  for (const Range& run : runs) rows += run.count;
  return rows;
}

void attention_forward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView q,
                       ConstTensorView kv, TensorView out, TensorView log_sum_exp) {
  const PhaseClock::Scope scope(context.clock, Phase::attention, context.stream);
  check(heads, runs, q, kv, out, log_sum_exp);
  context.kernels.attention.forward(context, heads, runs, q, kv, out, log_sum_exp);
}

void attention_backward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView dout,
                        ConstTensorView q, ConstTensorView kv, ConstTensorView out, ConstTensorView log_sum_exp,
                        TensorView dq, TensorView dkv) {
  const PhaseClock::Scope scope(context.clock, Phase::attention, context.stream);
  check(heads, runs, q, kv, out, log_sum_exp);
  require(dout.rows() == out.rows() && dout.columns() == out.columns(), "dout has the shape of out");
  require(
      dq.rows() == q.rows() && dq.columns() == q.columns() && dkv.rows() == kv.rows() && dkv.columns() == kv.columns(),
      "gradients have the shapes of their values");
  context.kernels.attention.backward(context, heads, runs, dout, q, kv, out, log_sum_exp, dq, dkv);
}

}  // namespace weft
