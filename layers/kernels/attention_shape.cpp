#include "layers/kernels/attention_shape.h"

namespace weft {

AttentionShape run_attention_shape(const HeadShape& heads, std::int64_t sequences, std::int64_t rows_per_sequence,
                                   Range run, const MatrixColumns& values, const MatrixColumns& gradients,
                                   GraphType type) {
  const std::int64_t head_dim = heads.head_dim, length = heads.sequence_length;
  const auto strides = [head_dim](std::int64_t rows, std::int64_t columns) {
    return HeadStrides{rows * columns, head_dim, columns};
  };
  const HeadStrides statistics{rows_per_sequence * heads.query_heads, 1, heads.query_heads};
  return {.batch = sequences,
          .query_heads = heads.query_heads,
          .key_value_heads = heads.key_value_heads,
          .query_length = run.count,
          .key_length = run.begin + run.count,
          .head_dim = head_dim,
          .type = type,
          .causal = true,
          .query_offset = run.begin,
          .q = strides(rows_per_sequence, values.q),
          .k = strides(length, values.k),
          .v = strides(length, values.v),
          .out = strides(rows_per_sequence, heads.query_heads * head_dim),
          .log_sum_exp = statistics,
          .dq = strides(rows_per_sequence, gradients.q),
          .dk = strides(length, gradients.k),
          .dv = strides(length, gradients.v)};
}

AttentionShape fused_attention_shape(const HeadShape& heads, std::int64_t sequences, GraphType type) {
  const std::int64_t length = heads.sequence_length;
  const MatrixColumns columns{heads.columns(), heads.columns(), heads.columns()};
  return run_attention_shape(heads, sequences, length, {0, length}, columns, columns, type);
}

std::int64_t row_sums_bytes(const AttentionShape& shape) {
  return shape.batch * shape.query_heads * shape.query_length * size_of(DType::float32);
}
std::int64_t dq_accumulator_bytes(const AttentionShape& shape, bool deterministic) {
  return deterministic ? 0 : row_sums_bytes(shape) * shape.head_dim;
}

}  // namespace weft
