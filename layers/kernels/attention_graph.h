// Attention and its gradient as a list of tensor operations, the form that cuDNN's graph API takes. A plain value that
// knows neither CUDA nor cuDNN, so that a test can interpret it and prove that it computes attention.
// layers/kernels/cuda/cudnn_plan.h passes it to cuDNN operation by operation.
//
// cuDNN recognises the whole pattern and runs one fused kernel; no intermediate of size queries x keys is stored. For
// this the order, element types and strides of intermediates must be exactly those that its engines expect.
//
// Every tensor has four dimensions: batch, head, row, column. Transposing is done by strides.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

using GraphDims = std::array<std::int64_t, 4>;

struct GraphTensor {
  std::int64_t id = 0;
  std::string name;
  GraphDims dims{}, strides{};  // strides in elements
  GraphType type = GraphType::float32;
  // An intermediate: has no memory, unless the engine puts it in its workspace.
  bool is_virtual = false;
  // Passed by value, not by pointer.
  std::optional<double> scalar;

  bool operator==(const GraphTensor&) const = default;
};

enum class GraphOperator : std::uint8_t {
  matmul,    // inputs[0] x inputs[1] over the last two dimensions; heads of the second are shared (head / group)
  multiply,  // pointwise with broadcast of dimensions of size 1; so are the next four
  subtract,
  add,
  divide,
  greater_equal,
  exponential,
  logarithm,
  identity,
  row_index,  // row of each element of inputs[0]; values of inputs[0] are not read
  column_index,
  select,      // inputs[2] ? inputs[0] : inputs[1]
  reduce_max,  // over every dimension that is smaller in the output; heads in consecutive groups
  reduce_add,
  reshape,  // the same memory under the output's dimensions and strides
};
constexpr auto enum_names(GraphOperator) {
  return name_list("matmul", "multiply", "subtract", "add", "divide", "greater_equal", "exponential", "logarithm",
                   "identity", "row_index", "column_index", "select", "reduce_max", "reduce_add", "reshape");
}

struct GraphOperation {
  GraphOperator op = GraphOperator::identity;
  std::vector<std::int64_t> inputs;  // tensor ids
  std::int64_t output = 0;

  bool operator==(const GraphOperation&) const = default;
};

struct AttentionGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOperation> operations;

  const GraphTensor& tensor(std::int64_t id) const;
  bool operator==(const AttentionGraph&) const = default;
};

// The tensors with memory: the ids under which pointers are passed.
enum class AttentionTensor : std::int64_t {
  q = 1,
  k,
  v,
  out,
  log_sum_exp,
  dout,
  dq,
  dk,
  dv,
  row_sums,         // scratch [batch, query_heads, query_length] float32: sum of dout * out
  dq_accumulator,   // scratch [batch, query_heads, query_length, head_dim] float32, unless deterministic
  document_begins,  // [batch, query_length] int32, if queries see the keys of their documents alone
};

// softmax(q k^T / sqrt(head_dim)) v and the log-sum-exp of each row: 10 operations. A causal mask adds 4, an offset
// one, a window three and documents two.
AttentionGraph attention_forward_graph(const AttentionShape& shape);
// From dout, q, k, v, out and log_sum_exp to dq, dk, dv: 18 operations. Query heads that share keys add 2, a causal
// mask 4, an offset one, a window three and documents two. `deterministic` drops the float32 accumulator of dq (one
// operation less) and its atomic additions. The engines then store all of dscores, batch
// * query_heads * queries * keys elements.
AttentionGraph attention_backward_graph(const AttentionShape& shape, bool deterministic);

// One line per operation: "scores = matmul(q, k_transposed) float32 [2, 4, 64, 64]".
std::string format(const AttentionGraph& graph);

}  // namespace weft
