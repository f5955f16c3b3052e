// Attention on strided matrices of doubles: inputs, places for every output, and the answer in plain loops. Used for
// whatever computes attention from an AttentionShape.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "layers/kernels/attention_graph.h"

namespace weft {

// Where a tensor begins in a matrix; the strides are those of the shape.
struct MatrixPlace {
  std::vector<double>* matrix = nullptr;
  std::int64_t offset = 0;

  double& at(std::int64_t element) const { return matrix->at(static_cast<std::size_t>(offset + element)); }
};
using AttentionPlaces = std::map<AttentionTensor, MatrixPlace>;

struct AttentionCase {
  AttentionShape shape;
  // Inputs are normal numbers, outputs NaN. kv and dkv are empty when qkv is one fused matrix.
  std::vector<double> q, kv, dout, out, log_sum_exp, dq, dkv, row_sums, dq_accumulator;
  std::vector<double> document_begins;  // by query row; empty: each sequence is one document
  std::int64_t q_offset = 0, k_offset = 0, v_offset = 0, row_offset = 0;  // row_offset: the run's first query row

  AttentionPlaces places();
};

// All queries of `sequences` sequences in one fused matrix qkv [tokens, heads.columns()], with out [tokens,
// heads.output_columns()] and log_sum_exp [tokens, query_heads]. Gradients have the layout of their values.
inline AttentionShape fused_attention_shape(const HeadShape& heads, std::int64_t sequences, GraphType type) {
  const std::int64_t length = heads.sequence_length;
  const MatrixColumns columns{heads.columns(), heads.columns(), heads.columns()};
  return run_attention_shape(heads, sequences, length, {0, length}, columns, columns, type);
}

AttentionCase fused_case(const HeadShape& heads, std::int64_t sequences);
// The run of a rank that holds `rows_per_sequence` queries of each sequence, of which the run starts at `run_row`. Keys
// and values have a matrix of their own.
AttentionCase run_case(const HeadShape& heads, std::int64_t sequences, std::int64_t rows_per_sequence,
                       std::int64_t run_row, Range run);

// The case with documents that begin at random positions of its sequences. `runs`: the positions of all query rows of a
// sequence.
AttentionCase with_documents(AttentionCase values, std::span<const Range> runs, unsigned seed);

// Fills out, log_sum_exp, dq, dk and dv.
void reference_attention(AttentionCase& values);

}  // namespace weft
