#include "layers/kernels/attention.h"

#include <algorithm>

#include "layers/kernels/kernels.h"
#include "parallel/runtime/elementwise.h"

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

void attention_cached(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView qkv,
                      TensorView cache, TensorView out) {
  const PhaseClock::Scope scope(context.clock, Phase::attention, context.stream);
  const std::int64_t capacity = heads.sequence_length, sequences = cache.rows() / std::max<std::int64_t>(capacity, 1);
  require(heads.key_value_heads > 0 && heads.query_heads % heads.key_value_heads == 0,
          "query heads share key-value heads evenly");
  require(sequences > 0 && cache.rows() == sequences * capacity && qkv.rows() % sequences == 0,
          "every sequence has a cache and equally many new tokens");
  const std::int64_t tokens = qkv.rows() / sequences, columns = 2 * heads.key_value_heads * heads.head_dim;
  require(position >= 0 && position + tokens <= capacity, "new tokens stand at positions that the cache has");
  require(qkv.columns() == heads.columns() && cache.columns() == columns && cache.dtype() == qkv.dtype(),
          "qkv holds the columns of every head, and the cache those of keys and values");
  require(out.rows() == qkv.rows() && out.columns() == heads.query_heads * heads.head_dim && out.dtype() == qkv.dtype(),
          "the output holds the columns of every query head");
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    copy_columns(context.stream, qkv.rows_from(sequence * tokens, tokens), qkv.columns() - columns,
                 cache.rows_from(sequence * capacity + position, tokens), 0, columns);
  }
  context.kernels.attention.cached(context, heads, position, qkv, cache, out);
}

}  // namespace weft
