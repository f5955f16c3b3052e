#include "layers/kernels/attention_graph.h"

#include <fmt/ranges.h>

#include <limits>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/error.h"

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

namespace {

GraphDims packed(const GraphDims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}
GraphDims rows_of(const HeadStrides& strides) {
  return {strides.batch, strides.head, strides.row, 1};
}
GraphDims columns_of(const HeadStrides& strides) {
  return {strides.batch, strides.head, 1, strides.row};
}

// Adds tensors and operations in order. Tensors are referred to by id.
class Builder {
 public:
  using Id = std::int64_t;

  explicit Builder(const AttentionShape& shape)
      : shape_(shape),
        heads_(shape.heads),
        scores_{shape.batch, heads_.query_heads, shape.query_length, heads_.sequence_length},
        rows_{shape.batch, heads_.query_heads, shape.query_length, 1} {}

  Id stored(AttentionTensor tensor, std::string name, const GraphDims& dims, const GraphDims& strides, GraphType type) {
    const Id id = static_cast<Id>(tensor);
    graph_.tensors.push_back({id, std::move(name), dims, strides, type, false, {}});
    return id;
  }
  // Stored tensors with a row a query (by query head) or a key (by key head), `width` columns wide, in the dtype of the
  // call.
  Id queries(AttentionTensor tensor, std::string name, const HeadStrides& strides, std::int64_t width) {
    return stored(tensor, std::move(name), query_dims(width), rows_of(strides), shape_.type);
  }
  Id keys(AttentionTensor tensor, std::string name, const HeadStrides& strides, std::int64_t width) {
    return stored(tensor, std::move(name), key_dims(width), rows_of(strides), shape_.type);
  }
  Id transposed_keys(AttentionTensor tensor, std::string name, const HeadStrides& strides, std::int64_t width) {
    return stored(tensor, std::move(name), {shape_.batch, heads_.key_value_heads, width, heads_.sequence_length},
                  columns_of(strides), shape_.type);
  }
  GraphDims query_dims(std::int64_t width) const {
    return {shape_.batch, heads_.query_heads, shape_.query_length, width};
  }
  GraphDims key_dims(std::int64_t width) const {
    return {shape_.batch, heads_.key_value_heads, heads_.sequence_length, width};
  }
  Id row_statistics(AttentionTensor tensor, std::string name, const HeadStrides& strides) {
    return stored(tensor, std::move(name), rows_, rows_of(strides), GraphType::float32);
  }
  Id scalar(std::string name, GraphType type, double value) {
    graph_.tensors.push_back({next_, std::move(name), {1, 1, 1, 1}, {1, 1, 1, 1}, type, false, value});
    return next_++;
  }

  // `output` = op(inputs), into a new intermediate or a stored tensor.
  Id compute(std::string name, GraphOperator op, std::vector<Id> inputs, const GraphDims& dims,
             const GraphDims& strides, GraphType type) {
    graph_.tensors.push_back({next_, std::move(name), dims, strides, type, true, {}});
    return store(op, std::move(inputs), next_++);
  }
  Id compute(std::string name, GraphOperator op, std::vector<Id> inputs, const GraphDims& dims,
             GraphType type = GraphType::float32) {
    return compute(std::move(name), op, std::move(inputs), dims, packed(dims), type);
  }
  Id store(GraphOperator op, std::vector<Id> inputs, Id output) {
    graph_.operations.push_back({op, std::move(inputs), output});
    return output;
  }
  // Intermediates of queries x keys, and of one number per query.
  Id scores(std::string name, GraphOperator op, std::vector<Id> inputs, GraphType type = GraphType::float32) {
    return compute(std::move(name), op, std::move(inputs), scores_, type);
  }
  Id rows(std::string name, GraphOperator op, std::vector<Id> inputs) {
    return compute(std::move(name), op, std::move(inputs), rows_);
  }

  Id scale() { return scalar("scale", GraphType::float32, heads_.score_scale()); }
  // Keys after a query's position get the lowest finite score. In a block of keys that a row does not see at all, an
  // engine would subtract minus infinity from itself.
  Id masked(Id score) {
    if (!shape_.causal) return score;
    const Id lowest = scalar("lowest", GraphType::float32, std::numeric_limits<float>::lowest());
    Id position = scores("position", GraphOperator::row_index, {score}, GraphType::int32);
    const Id key = scores("key", GraphOperator::column_index, {score}, GraphType::int32);
    if (shape_.query_offset != 0) {
      const Id offset = scalar("offset", GraphType::int32, static_cast<double>(shape_.query_offset));
      position = scores("offset_position", GraphOperator::add, {position, offset}, GraphType::int32);
    }
    const Id visible = scores("visible", GraphOperator::greater_equal, {position, key}, GraphType::boolean);
    Id masked = scores("masked_scores", GraphOperator::select, {score, lowest, visible});
    if (shape_.document_rows > 0) {
      const Id begins =
          stored(AttentionTensor::document_begins, "document_begins", {shape_.batch, 1, shape_.query_length, 1},
                 {shape_.document_rows, shape_.document_rows, 1, 1}, GraphType::int32);
      const Id own = scores("own", GraphOperator::greater_equal, {key, begins}, GraphType::boolean);
      masked = scores("own_scores", GraphOperator::select, {masked, lowest, own});
    }
    require(heads_.first_key.is_window(), "a graph of attention knows windows alone");
    const std::int64_t window = heads_.first_key.window;
    if (window == 0) return masked;
    const Id reach = scalar("reach", GraphType::int32, static_cast<double>(window - 1));
    const Id last = scores("last_query", GraphOperator::add, {key, reach}, GraphType::int32);
    const Id near = scores("near", GraphOperator::greater_equal, {last, position}, GraphType::boolean);
    return scores("near_scores", GraphOperator::select, {masked, lowest, near});
  }
  Id transposed(std::string name, Id score) {
    const GraphDims dims{scores_[0], scores_[1], scores_[3], scores_[2]}, strides = packed(scores_);
    return compute(std::move(name), GraphOperator::reshape, {score}, dims,
                   {strides[0], strides[1], strides[3], strides[2]}, shape_.type);
  }
  // left^T x right per query head, summed over the query heads of each key head.
  void store_key_gradient(const std::string& name, Id left, Id right, std::int64_t width, Id output) {
    if (heads_.query_heads == heads_.key_value_heads) {
      store(GraphOperator::matmul, {left, right}, output);
      return;
    }
    const GraphDims full{shape_.batch, heads_.query_heads, heads_.sequence_length, width};
    const Id per_head = compute(name + "_per_query_head", GraphOperator::matmul, {left, right}, full, shape_.type);
    store(GraphOperator::reduce_add, {per_head}, output);
  }

  AttentionGraph take() { return std::move(graph_); }

 private:
  const AttentionShape& shape_;
  const HeadShape& heads_;
  GraphDims scores_, rows_;
  AttentionGraph graph_;
  Id next_ = 1000;
};

}  // namespace

const GraphTensor& AttentionGraph::tensor(std::int64_t id) const {
  for (const GraphTensor& candidate : tensors) {
    if (candidate.id == id) return candidate;
  }
  fail("the attention graph has no tensor {}", id);
}

AttentionGraph attention_forward_graph(const AttentionShape& shape) {
  using enum GraphOperator;
  Builder g(shape);
  const std::int64_t key = shape.heads.head_dim, value = shape.heads.value_dim;
  const auto q = g.queries(AttentionTensor::q, "q", shape.q, key);
  const auto k_transposed = g.transposed_keys(AttentionTensor::k, "k_transposed", shape.k, key);
  const auto v = g.keys(AttentionTensor::v, "v", shape.v, value);
  const auto out = g.queries(AttentionTensor::out, "out", shape.out, value);
  const auto log_sum_exp = g.row_statistics(AttentionTensor::log_sum_exp, "log_sum_exp", shape.log_sum_exp);

  const auto products = g.scores("products", matmul, {q, k_transposed});
  const auto scores = g.masked(g.scores("scores", multiply, {products, g.scale()}));
  const auto maximum = g.rows("maximum", reduce_max, {scores});
  const auto shifted = g.scores("shifted", subtract, {scores, maximum});
  const auto powers = g.scores("powers", exponential, {shifted});
  const auto sum = g.rows("sum", reduce_add, {powers});
  const auto log_sum = g.rows("log_sum", logarithm, {sum});
  g.store(add, {maximum, log_sum}, log_sum_exp);
  const auto probabilities = g.scores("probabilities", divide, {powers, sum}, shape.type);
  g.store(matmul, {probabilities, v}, out);
  return g.take();
}

AttentionGraph attention_backward_graph(const AttentionShape& shape, bool deterministic) {
  using enum GraphOperator;
  Builder g(shape);
  const std::int64_t key = shape.heads.head_dim, value = shape.heads.value_dim;
  const auto q = g.queries(AttentionTensor::q, "q", shape.q, key);
  const auto k_transposed = g.transposed_keys(AttentionTensor::k, "k_transposed", shape.k, key);
  const auto v_transposed = g.transposed_keys(AttentionTensor::v, "v_transposed", shape.v, value);
  const auto out = g.queries(AttentionTensor::out, "out", shape.out, value);
  const auto dout = g.queries(AttentionTensor::dout, "dout", shape.out, value);
  const auto log_sum_exp = g.row_statistics(AttentionTensor::log_sum_exp, "log_sum_exp", shape.log_sum_exp);
  const auto dq = g.queries(AttentionTensor::dq, "dq", shape.dq, key);
  const auto dk = g.keys(AttentionTensor::dk, "dk", shape.dk, key);
  const auto dv = g.keys(AttentionTensor::dv, "dv", shape.dv, value);
  const auto row_sums = g.row_statistics(AttentionTensor::row_sums, "row_sums",
                                         {shape.heads.query_heads * shape.query_length, shape.query_length, 1});
  const auto scale = g.scale(), one = g.scalar("one", GraphType::float32, 1.0);

  // Sum over keys of p * dp, computed as row sums of dout * out. The multiplication by one lets the engines compute
  // them ahead of the rest and keep them in the caller's scratch.
  const auto dout_out = g.compute("dout_out", multiply, {dout, out}, g.query_dims(value));
  g.store(multiply, {g.rows("unscaled_row_sums", reduce_add, {dout_out}), one}, row_sums);

  const auto products = g.scores("products", matmul, {q, k_transposed});
  const auto scores = g.scores("scores", multiply, {products, scale});
  const auto logarithms = g.masked(g.scores("logarithms", subtract, {scores, log_sum_exp}));
  const auto probabilities = g.scores("probabilities", exponential, {logarithms});
  g.store_key_gradient("dv", g.transposed("probabilities_transposed", probabilities), dout, value, dv);

  const auto dprobabilities = g.scores("dprobabilities", matmul, {dout, v_transposed});
  const auto centred = g.scores("centred", subtract, {dprobabilities, row_sums});
  const auto weighted = g.scores("weighted", multiply, {centred, probabilities});
  const auto dscores =
      g.scores("dscores", multiply, {weighted, scale}, deterministic ? shape.type : GraphType::float32);
  g.store_key_gradient("dk", g.transposed("dscores_transposed", dscores), q, key, dk);

  const auto k = g.compute("k", reshape, {k_transposed}, g.key_dims(key), rows_of(shape.k), shape.type);
  if (deterministic) {
    g.store(matmul, {dscores, k}, dq);
  } else {
    const GraphDims queries = g.query_dims(key);
    const auto accumulator =
        g.stored(AttentionTensor::dq_accumulator, "dq_accumulator", queries, packed(queries), GraphType::float32);
    g.store(matmul, {dscores, k}, accumulator);
    g.store(identity, {accumulator}, dq);
  }
  return g.take();
}

std::string format(const AttentionGraph& graph) {
  std::string text;
  for (const GraphOperation& operation : graph.operations) {
    std::vector<std::string> inputs;
    for (std::int64_t id : operation.inputs) {
      const GraphTensor& input = graph.tensor(id);
      inputs.push_back(input.scalar ? fmt::format("{}={:g}", input.name, *input.scalar) : input.name);
    }
    const GraphTensor& output = graph.tensor(operation.output);
    text += fmt::format("{} = {}({}) {} {} by {}{}\n", output.name, name_of(operation.op), fmt::join(inputs, ", "),
                        name_of(output.type), output.dims, output.strides, output.is_virtual ? "" : " stored");
  }
  return text;
}

}  // namespace weft
