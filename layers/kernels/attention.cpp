#include "layers/kernels/attention.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "layers/kernels/kernels.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

template <typename View>
void require_columns(const HeadShape& heads, const AttentionHeads<View>& of) {
  const auto holds = [](const HeadColumns<View>& part, std::int64_t columns) {
    return part.column >= 0 && part.rows.columns() >= part.column + columns;
  };
  require(holds(of.q, heads.key_column()) && holds(of.k, heads.own_value_column()) &&
              holds(of.v, heads.key_value_heads * heads.value_dim),
          "a matrix holds the columns of its heads");
}

void check(const HeadShape& heads, QueryRuns runs, const AttentionInputs& inputs, ConstTensorView out,
           ConstTensorView log_sum_exp) {
  const auto& [q, k, v] = static_cast<const AttentionHeads<ConstTensorView>&>(inputs);
  const ConstTensorView& begins = inputs.document_begins;
  require(heads.key_value_heads > 0 && heads.query_heads % heads.key_value_heads == 0,
          "query heads share key-value heads evenly");
  require(heads.sequence_length > 0 && k.rows.rows() % heads.sequence_length == 0, "tokens come in whole sequences");
  std::int64_t end = 0;
  for (const Range& run : runs) {
    require(run.begin >= end && run.count >= 0, "runs of queries ascend");
    end = run.begin + run.count;
  }
  require(end <= heads.sequence_length, "queries stand inside their sequence");
  require(q.rows.rows() == k.rows.rows() / heads.sequence_length * query_rows(runs),
          "every sequence has the queries of the runs");
  require_columns(heads, inputs);
  for (const auto& of : {k, v}) {
    require(of.rows.dtype() == q.rows.dtype() && of.rows.rows() == k.rows.rows(),
            "a key and a value a position, in the dtype of queries");
  }
  require(begins.empty() || (begins.rows() == q.rows.rows() && begins.columns() == 1 && begins.dtype() == DType::int32),
          "a document begins at a position for every query");
  require(out.rows() == q.rows.rows() && out.columns() == heads.output_columns() && out.dtype() == q.rows.dtype(),
          "the output holds the columns of every query head");
  require(log_sum_exp.rows() == q.rows.rows() && log_sum_exp.columns() == heads.query_heads,
          "one log-sum-exp a token and query head");
}

using ConstHeadColumns = HeadColumns<ConstTensorView>;

std::vector<ConstHeadColumns> forward_operands(const AttentionInputs& inputs, ConstTensorView out,
                                               ConstTensorView log_sum_exp) {
  return {inputs.q, inputs.k, inputs.v, {inputs.document_begins}, {out}, {log_sum_exp}};
}

// The operands are told apart by their addresses.
void add_call(std::vector<AttentionCall>& calls, const HeadShape& heads, QueryRuns runs,
              const std::vector<ConstHeadColumns>& operands) {
  AttentionCall call{heads, {runs.begin(), runs.end()}, {}};
  std::vector<const void*> addresses;
  for (const auto& [rows, column] : operands) {
    const auto known = std::ranges::find(addresses, rows.data());
    call.operands.push_back(
        {static_cast<std::size_t>(known - addresses.begin()), rows.dtype(), rows.rows(), rows.columns(), column});
    if (known == addresses.end()) addresses.push_back(rows.data());
  }
  if (std::ranges::find(calls, call) == calls.end()) calls.push_back(std::move(call));
}

}  // namespace

void run_once(KernelContext& context, const AttentionCall& call) {
  std::map<std::size_t, Tensor> matrices;
  std::vector<HeadColumns<TensorView>> at;
  for (const AttentionCall::Operand& of : call.operands) {
    Tensor& matrix = matrices[of.matrix];
    if (of.rows > 0 && matrix.view().empty()) {
      matrix = context.ledger.allocate(Bucket::workspace, of.dtype, of.rows, of.columns);
      fill(context.stream, matrix, 0.0f);
    }
    at.push_back({matrix, of.column});
  }
  const auto input = [&](std::size_t i) { return ConstHeadColumns{at[i].rows, at[i].column}; };
  const AttentionInputs inputs({input(0), input(1), input(2)}, at[3].rows);
  if (call.is_backward()) {
    const AttentionGradients gradients{at[7], at[8], at[9]};
    attention_backward(context, call.heads, call.runs, at[6].rows, inputs, at[4].rows, at[5].rows, gradients);
  } else {
    attention_forward(context, call.heads, call.runs, inputs, at[4].rows, at[5].rows);
  }
}

AttentionKernels AttentionKernels::recorded(std::vector<AttentionCall>& calls) const {
  AttentionKernels kernels = *this;
  kernels.forward = [&calls, forward = forward](KernelContext& context, const HeadShape& heads, QueryRuns runs,
                                                const AttentionInputs& inputs, TensorView out, TensorView log_sum_exp) {
    add_call(calls, heads, runs, forward_operands(inputs, out, log_sum_exp));
    forward(context, heads, runs, inputs, out, log_sum_exp);
  };
  kernels.backward = [&calls, backward = backward](KernelContext& context, const HeadShape& heads, QueryRuns runs,
                                                   ConstTensorView dout, const AttentionInputs& inputs,
                                                   ConstTensorView out, ConstTensorView log_sum_exp,
                                                   const AttentionGradients& gradients) {
    std::vector<ConstHeadColumns> operands = forward_operands(inputs, out, log_sum_exp);
    operands.push_back({dout});
    for (const auto& of : {gradients.q, gradients.k, gradients.v}) operands.push_back({of.rows, of.column});
    add_call(calls, heads, runs, operands);
    backward(context, heads, runs, dout, inputs, out, log_sum_exp, gradients);
  };
  return kernels;
}

std::int64_t query_rows(QueryRuns runs) {
  std::int64_t rows = 0;
  for (const Range& run : runs) rows += run.count;
  return rows;
}

void attention_forward(KernelContext& context, const HeadShape& heads, QueryRuns runs, const AttentionInputs& inputs,
                       TensorView out, TensorView log_sum_exp) {
  const PhaseClock::Scope scope(context.clock, Phase::attention, context.stream);
  check(heads, runs, inputs, out, log_sum_exp);
  context.kernels.attention.forward(context, heads, runs, inputs, out, log_sum_exp);
}

void attention_backward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView dout,
                        const AttentionInputs& inputs, ConstTensorView out, ConstTensorView log_sum_exp,
                        const AttentionGradients& gradients) {
  const PhaseClock::Scope scope(context.clock, Phase::attention, context.stream);
  const auto& [dq, dk, dv] = gradients;
  check(heads, runs, inputs, out, log_sum_exp);
  require(dout.rows() == out.rows() && dout.columns() == out.columns(), "dout has the shape of out");
  require(dq.rows.rows() == inputs.q.rows.rows() && dk.rows.rows() == inputs.k.rows.rows() &&
              dv.rows.rows() == inputs.v.rows.rows(),
          "a gradient a row of its value");
  require_columns(heads, gradients);
  context.kernels.attention.backward(context, heads, runs, dout, inputs, out, log_sum_exp, gradients);
}

void attention_cached(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView qkv,
                      TensorView cache, TensorView out) {
  const PhaseClock::Scope scope(context.clock, Phase::attention, context.stream);
  const std::int64_t capacity = heads.sequence_length, sequences = cache.rows() / std::max<std::int64_t>(capacity, 1);
  require(heads.key_value_heads > 0 && heads.query_heads % heads.key_value_heads == 0,
          "query heads share key-value heads evenly");
  require(sequences > 0 && cache.rows() == sequences * capacity && qkv.rows() % sequences == 0,
          "every sequence has a cache and equally many new tokens");
  const std::int64_t tokens = qkv.rows() / sequences, columns = heads.key_value_columns();
  require(position >= 0 && position + tokens <= capacity, "new tokens stand at positions that the cache has");
  require(qkv.columns() == heads.columns() && cache.columns() == columns && cache.dtype() == qkv.dtype(),
          "qkv holds the columns of every head, and the cache those of keys and values");
  require(out.rows() == qkv.rows() && out.columns() == heads.output_columns() && out.dtype() == qkv.dtype(),
          "the output holds the columns of every query head");
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    copy_columns(context.stream, qkv.rows_from(sequence * tokens, tokens), qkv.columns() - columns,
                 cache.rows_from(sequence * capacity + position, tokens), 0, columns);
  }
  context.kernels.attention.cached(context, heads, position, qkv, cache, out);
}

}  // namespace weft
