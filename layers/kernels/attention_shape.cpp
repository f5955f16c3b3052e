#include "layers/kernels/attention_shape.h"

#include "parallel/runtime/dtype.h"

namespace weft {

AttentionShape run_attention_shape(const HeadShape& heads, std::int64_t sequences, std::int64_t rows_per_sequence,
                                   Range run, const MatrixColumns& values, const MatrixColumns& gradients,
                                   GraphType type) {
  const std::int64_t length = heads.sequence_length, key = heads.head_dim, value = heads.value_dim;
  const auto strides = [](std::int64_t rows, std::int64_t columns, std::int64_t width) {
    return HeadStrides{rows * columns, width, columns};
  };
  HeadShape seen = heads;
  seen.sequence_length = run.begin + run.count;
  const HeadStrides statistics{rows_per_sequence * heads.query_heads, 1, heads.query_heads};
  return {.batch = sequences,
          .heads = seen,
          .query_length = run.count,
          .type = type,
          .causal = true,
          .query_offset = run.begin,
          .q = strides(rows_per_sequence, values.q, key),
          .k = strides(length, values.k, key),
          .v = strides(length, values.v, value),
          .out = strides(rows_per_sequence, heads.output_columns(), value),
          .log_sum_exp = statistics,
          .dq = strides(rows_per_sequence, gradients.q, key),
          .dk = strides(length, gradients.k, key),
          .dv = strides(length, gradients.v, value)};
}

std::int64_t row_sums_bytes(const AttentionShape& shape) {
  return shape.batch * shape.heads.query_heads * shape.query_length * size_of(DType::float32);
}
std::int64_t dq_accumulator_bytes(const AttentionShape& shape, bool deterministic) {
  return deterministic ? 0 : row_sums_bytes(shape) * shape.heads.head_dim;
}
std::int64_t known_backward_bytes(const AttentionShape& shape, bool deterministic) {
  const auto aligned = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::int64_t scores = shape.batch * shape.heads.query_heads * shape.query_length * shape.heads.sequence_length *
                              size_of(DType::bfloat16);
  return aligned(row_sums_bytes(shape)) + (deterministic ? scores : aligned(dq_accumulator_bytes(shape, false)));
}

}  // namespace weft
