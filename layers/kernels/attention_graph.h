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
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layers/kernels/attention_shape.h"
#include "parallel/runtime/enum_names.h"

namespace weft {

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
