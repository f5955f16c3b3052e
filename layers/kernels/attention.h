// Grouped-query causal attention in blocks: softmax(q k^T / sqrt(head_dim)) v within each sequence (head_shape.h). No
// sequence x sequence matrix is stored; workspace is one block of scores (Dao et al. 2022, FlashAttention; the backward
// recomputes probabilities from the log-sum-exp).
//
// A rank may compute only some queries of each sequence, given by `runs`: consecutive positions, ascending and
// disjoint. q has a row for each of these queries, sequence after sequence. k and v have a row for each of the
// heads.sequence_length positions of every sequence. The three may be columns of one matrix. out [query rows,
// heads.output_columns()] in the same dtype; log_sum_exp [query rows, query_heads] float32. Dtypes float32, bfloat16 or
// float16; sums are float32.
//
// A sequence may hold several documents. Then no query sees a key in front of its own document. Rotary angles need not
// begin anew: scores depend on differences of positions alone.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "layers/kernels/token_kernels.h"

namespace weft {

using QueryRuns = std::span<const Range>;
// Number of queries of one sequence.
std::int64_t query_rows(QueryRuns runs);

// Heads in the rows of a matrix: head h begins at column `column` + h * head_dim, or h * value_dim for values.
template <typename View>
struct HeadColumns {
  View rows;
  std::int64_t column = 0;
};
template <typename View>
struct AttentionHeads {
  HeadColumns<View> q, k, v;
};
using AttentionGradients = AttentionHeads<TensorView>;
struct AttentionInputs : AttentionHeads<ConstTensorView> {
  // Implicit: the heads are all, if a sequence is one document.
  AttentionInputs(const AttentionHeads<ConstTensorView>& heads, ConstTensorView begins = {})
      : AttentionHeads<ConstTensorView>(heads), document_begins(begins) {}

  // [query rows, 1] int32: the position in its sequence at which the document of each query begins. It never falls from
  // one query of a sequence to the next, and is at most the query's own. Empty: each sequence is one document.
  ConstTensorView document_begins;
};

// All of one matrix [tokens, heads.columns()], as token_kernels.h has it.
template <typename View>
AttentionHeads<View> fused_heads(const HeadShape& heads, View qkv) {
  return {{qkv, 0}, {qkv, heads.key_column()}, {qkv, heads.value_column()}};
}
// q in the first columns of a matrix; keys and values in one of their own, [rows, heads.key_value_columns()].
template <typename View>
AttentionHeads<View> parted_heads(const HeadShape& heads, View q, View keys_values) {
  return {{q, 0}, {keys_values, 0}, {keys_values, heads.own_value_column()}};
}

void attention_forward(KernelContext& context, const HeadShape& heads, QueryRuns runs, const AttentionInputs& inputs,
                       TensorView out, TensorView log_sum_exp);
// The head columns of the gradients are overwritten. Keys and values shared by several query heads get the sum of their
// gradients.
void attention_backward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView dout,
                        const AttentionInputs& inputs, ConstTensorView out, ConstTensorView log_sum_exp,
                        const AttentionGradients& gradients);

// For text generation: new tokens of several sequences attend to all earlier tokens of their sequence. `qkv` [sequences
// * tokens, heads.columns()], after rotary, has the new tokens sequence after sequence, at positions `position`,
// `position` + 1, ... of their sequence. `cache` [sequences * heads.sequence_length, heads.key_value_columns()] has a
// row for every position that a sequence may reach, key heads and then value heads. The new tokens' rows are written
// and earlier rows are read; later rows are not touched. out [sequences * tokens, heads.output_columns()]. All have one
// dtype, float32, bfloat16 or float16; sums are float32.
void attention_cached(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView qkv,
                      TensorView cache, TensorView out);

// A forward or backward without its data, as a dry run meets it.
struct AttentionCall {
  // Operands with one `matrix` are columns of the same one. Those that are absent have no rows.
  struct Operand {
    std::size_t matrix = 0;
    DType dtype = DType::float32;
    std::int64_t rows = 0, columns = 0, column = 0;
    bool operator==(const Operand&) const = default;
  };
  HeadShape heads;
  std::vector<Range> runs;
  // q, k, v, document_begins, out, log_sum_exp; of a backward also dout, and the gradients of q, k and v.
  std::vector<Operand> operands;

  bool is_backward() const { return operands.size() > 6; }
  bool operator==(const AttentionCall&) const = default;
};
// Does such a call on zeros from the context's ledger, which are released afterwards. A library compiles and loads what
// a shape needs when it first meets the shape, and may wait for all that the device does.
void run_once(KernelContext& context, const AttentionCall& call);

// std::function, because prepared plans of a library belong to the rank.
struct AttentionKernels {
  std::function<decltype(attention_forward)> forward;
  std::function<decltype(attention_backward)> backward;
  // The part of attention_cached after the new keys and values are in the cache.
  std::function<void(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView q,
                     ConstTensorView cache, TensorView out)>
      cached;
  // These kernels, with each call added to `calls` that differs from those in it. `calls` outlives the kernels.
  AttentionKernels recorded(std::vector<AttentionCall>& calls) const;
  // In words, what computes a microbatch of this shape: the library, or the reason for not using one. `documents`: a
  // sequence may hold several.
  std::function<std::string(const HeadShape&, QueryRuns, DType, bool documents)> description;
};

}  // namespace weft
