// The computation of one call of graph attention (attention_graph.h), and the memory layout of its tensors.
#pragma once

#include <compare>
#include <cstdint>

#include "layers/kernels/head_shape.h"
#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/range.h"

namespace weft {

enum class GraphType : std::uint8_t { float32, bfloat16, float16, int32, boolean };
constexpr auto enum_names(GraphType) {
  return name_list("float32", "bfloat16", "float16", "int32", "boolean");
}

// Distance in elements from one sequence, head or token to the next; columns of a head are adjacent.
struct HeadStrides {
  std::int64_t batch = 0, head = 0, row = 0;
  auto operator<=>(const HeadStrides&) const = default;
};

// Queries 0 .. query_length - 1 of every sequence against keys 0 .. heads.sequence_length - 1. With `causal`, query i
// has position query_offset + i and sees the keys up to that position. A run of a context-parallel rank (attention.h)
// has offset run.begin and run.begin + run.count keys.
struct AttentionShape {
  std::int64_t batch = 0;
  HeadShape heads;
  std::int64_t query_length = 0;
  GraphType type = GraphType::bfloat16;
  bool causal = true;
  std::int64_t query_offset = 0;
  HeadStrides q, k, v;
  HeadStrides out;  // and dout
  HeadStrides log_sum_exp;
  HeadStrides dq, dk, dv;
  // Above 0, no query sees a key in front of its document (attention.h). The beginnings of the documents of a
  // sequence's queries then lie so many numbers behind those of the one before.
  std::int64_t document_rows = 0;

  auto operator<=>(const AttentionShape&) const = default;
};

// One run of queries of a rank that has `rows_per_sequence` queries of each sequence. q has sequences *
// rows_per_sequence rows, k and v have sequences * heads.sequence_length rows. `values` gives the widths of their
// matrices, `gradients` those of their gradients. Pointers to q, out, log_sum_exp and their gradients point at the
// run's first row in the first sequence. The backward overwrites the first run.begin + run.count rows of each sequence
// of dk and dv.
struct MatrixColumns {
  std::int64_t q = 0, k = 0, v = 0;
};
AttentionShape run_attention_shape(const HeadShape& heads, std::int64_t sequences, std::int64_t rows_per_sequence,
                                   Range run, const MatrixColumns& values, const MatrixColumns& gradients,
                                   GraphType type);

// Bytes of float32 scratch that the caller of the backward graph provides besides the engine's workspace.
std::int64_t row_sums_bytes(const AttentionShape& shape);
std::int64_t dq_accumulator_bytes(const AttentionShape& shape, bool deterministic);
// All workspace of a backward that its shape tells. These are both, each at a multiple of 256 bytes, and the scores in
// 16 bits that the engine of a deterministic backward keeps.
std::int64_t known_backward_bytes(const AttentionShape& shape, bool deterministic);

}  // namespace weft
