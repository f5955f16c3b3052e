#include "layers/kernels/cpu/kernels.h"

#include <cmath>

#include "layers/kernels/cpu/attention_blocks.h"
#include "parallel/runtime/element_type.h"
#include "parallel/runtime/elementwise.h"

namespace weft::cpu {
namespace {

std::int64_t widest_block(const HeadShape& heads) {
  return std::min(key_block, heads.sequence_length);
}

Tensor float32_workspace(KernelContext& context, std::int64_t rows, std::int64_t columns) {
  return context.ledger.allocate(Bucket::workspace, DType::float32, rows, columns);
}

// The columns from `column` on, of the rows of one sequence.
template <typename T>
StridedMatrix<T> columns_from(ConstTensorView tensor, std::int64_t first_row, std::int64_t column) {
  return {tensor.as<T>().data() + first_row * tensor.columns() + column, tensor.columns()};
}
template <typename T>
T* columns_from(TensorView tensor, std::int64_t first_row, std::int64_t column) {
  return tensor.as<T>().data() + first_row * tensor.columns() + column;
}
// Head `head` of `width` columns in the rows of one sequence.
template <typename T, typename View>
auto head_from(const HeadColumns<View>& of, std::int64_t first_row, std::int64_t head, std::int64_t width) {
  return columns_from<T>(of.rows, first_row, of.column + head * width);
}

// A head as a factor of products. float32 is read in place. Heads of 16 bits are copied into `place`, which is as wide,
// because 16-bit products take dense factors.
template <typename T>
StridedMatrix<T> packed_head(const HeadColumns<ConstTensorView>& of, std::int64_t first_row, std::int64_t head,
                             std::int64_t rows, Tensor& place) {
  const std::int64_t width = place.columns();
  const StridedMatrix<T> found = head_from<T>(of, first_row, head, width);
  if constexpr (dtype_of<T> == DType::float32) {
    return found;
  } else {
    T* to = place.as<T>().data();
    for (std::int64_t row = 0; row < rows; ++row) std::copy_n(found.data + row * found.stride, width, to + row * width);
    return {to, width};
  }
}

// By query of one sequence, or null.
const std::int32_t* begins_from(const AttentionInputs& inputs, std::int64_t first_query) {
  return inputs.document_begins.empty() ? nullptr : inputs.document_begins.as<std::int32_t>().data() + first_query;
}
// Those of the stripe that begins at query `row` of its sequence.
VisibleKeys keys_of(const HeadShape& heads, const std::int32_t* document_begins, std::int64_t row) {
  return {heads.first_key, document_begins == nullptr ? nullptr : document_begins + row};
}

// Calls `visit(position, row, rows)` for the stripes of queries of one sequence. `row` is the index among the queries
// of all runs.
template <typename Visit>
void for_each_stripe(QueryRuns runs, Visit visit) {
  std::int64_t row = 0;
  for (const Range& run : runs) {
    for (std::int64_t done = 0; done < run.count; done += query_block) {
      visit(run.begin + done, row + done, std::min(query_block, run.count - done));
    }
    row += run.count;
  }
}

template <typename T>
struct Forward {
  KernelContext& context;
  const HeadShape& heads;
  QueryRuns runs;
  Tensor scores = float32_workspace(context, query_block, widest_block(heads));
  Tensor stripe = float32_workspace(context, query_block, heads.value_dim);
  Tensor statistics = float32_workspace(context, 2, query_block);
  FactorBlock<T> probabilities{context, scores};
  Tensor packed_q = allocate_packed_head<T>(context, heads.sequence_length, heads.head_dim);
  Tensor packed_k = allocate_packed_head<T>(context, heads.sequence_length, heads.head_dim);
  Tensor packed_v = allocate_packed_head<T>(context, heads.sequence_length, heads.value_dim);

  // `out` and `log_sum_exp` point at the head's first row; their rows have the stride of their whole tensors.
  void run_head(StridedMatrix<T> q, StridedMatrix<T> k, StridedMatrix<T> v, const std::int32_t* document_begins, T* out,
                float* log_sum_exp) {
    const std::int64_t head_dim = heads.head_dim, value_dim = heads.value_dim;
    const auto scale = static_cast<float>(heads.score_scale());
    float* score = scores.as<float>().data();
    float* sum_of_values = stripe.as<float>().data();
    const RunningSoftmax softmax{statistics.as<float>().data(), statistics.as<float>().data() + query_block};
    for_each_stripe(runs, [&](std::int64_t position, std::int64_t row, std::int64_t rows) {
      for_each_block(position, rows, keys_of(heads, document_begins, row), [&](const ScoreBlock& block) {
        block_product(context, rows, block.columns, head_dim, rows_from(q, row), Transpose::no,
                      rows_from(k, block.first_column), Transpose::yes, score, false);
        softmax_block(block, scale, score, probabilities.data, softmax, sum_of_values, value_dim);
        block_product(context, rows, value_dim, block.columns, StridedMatrix<T>{probabilities.data, block.columns},
                      Transpose::no, rows_from(v, block.first_column), Transpose::no, sum_of_values, !block.first);
      });
      for (std::int64_t r = 0; r < rows; ++r) {
        log_sum_exp[(row + r) * heads.query_heads] = scale * softmax.maximum[r] + std::log(softmax.sum[r]);
        softmax.sum[r] = 1.0f / softmax.sum[r];
      }
      const std::int64_t out_columns = heads.output_columns();
      store_rows(sum_of_values, softmax.sum, rows, value_dim, out + row * out_columns, out_columns);
    });
  }

  void run(const AttentionInputs& inputs, TensorView out, TensorView log_sum_exp) {
    const std::int64_t length = heads.sequence_length, queries = query_rows(runs);
    const std::int64_t value_dim = heads.value_dim, group = heads.query_heads / heads.key_value_heads;
    StridedMatrix<T> k, v;
    for (std::int64_t sequence = 0; sequence * length < inputs.k.rows.rows(); ++sequence) {
      const std::int64_t first = sequence * length, first_query = sequence * queries;
      for (std::int64_t head = 0; head < heads.query_heads; ++head) {
        if (head % group == 0) {
          k = packed_head<T>(inputs.k, first, head / group, length, packed_k);
          v = packed_head<T>(inputs.v, first, head / group, length, packed_v);
        }
        const StridedMatrix<T> q = packed_head<T>(inputs.q, first_query, head, queries, packed_q);
        run_head(q, k, v, begins_from(inputs, first_query), columns_from<T>(out, first_query, head * value_dim),
                 columns_from<float>(log_sum_exp, first_query, head));
      }
    }
  }
};

template <typename T>
struct Backward {
  KernelContext& context;
  const HeadShape& heads;
  QueryRuns runs;
  Tensor scores = float32_workspace(context, query_block, widest_block(heads));
  Tensor dscores = float32_workspace(context, query_block, widest_block(heads));
  Tensor dq = float32_workspace(context, query_block, heads.head_dim);
  Tensor dk = float32_workspace(context, heads.sequence_length, heads.head_dim);
  Tensor dv = float32_workspace(context, heads.sequence_length, heads.value_dim);
  Tensor row_products = float32_workspace(context, 1, query_block);
  FactorBlock<T> probability_factors{context, scores}, dscore_factors{context, dscores};
  Tensor packed_q = allocate_packed_head<T>(context, heads.sequence_length, heads.head_dim);
  Tensor packed_dout = allocate_packed_head<T>(context, heads.sequence_length, heads.value_dim);
  Tensor packed_k = allocate_packed_head<T>(context, heads.sequence_length, heads.head_dim);
  Tensor packed_v = allocate_packed_head<T>(context, heads.sequence_length, heads.value_dim);
  StridedMatrix<T> k = {}, v = {};

  // Writes the gradient of one query head, with a row stride of `dq_stride` elements, and adds to the gradients of its
  // key-value head.
  void run_query_head(StridedMatrix<T> q, StridedMatrix<T> dout, StridedMatrix<T> out, const float* log_sum_exp,
                      const std::int32_t* document_begins, T* dq_out, std::int64_t dq_stride) {
    const std::int64_t head_dim = heads.head_dim, value_dim = heads.value_dim;
    const auto scale = static_cast<float>(heads.score_scale());
    float* score = scores.as<float>().data();
    float* dprobability = dscores.as<float>().data();
    float* product = row_products.as<float>().data();
    for_each_stripe(runs, [&](std::int64_t position, std::int64_t row, std::int64_t rows) {
      const StridedMatrix<T> q_rows = rows_from(q, row), dout_rows = rows_from(dout, row);
      multiply_rows(dout_rows.data, dout_rows.stride, rows_from(out, row).data, out.stride, rows, value_dim, product);
      const RowStatistics statistics{log_sum_exp + row * heads.query_heads, heads.query_heads, product};
      for_each_block(position, rows, keys_of(heads, document_begins, row), [&](const ScoreBlock& block) {
        const std::int64_t columns = block.columns, first = block.first_column;
        block_product(context, rows, columns, head_dim, q_rows, Transpose::no, rows_from(k, first), Transpose::yes,
                      score, false);
        block_product(context, rows, columns, value_dim, dout_rows, Transpose::no, rows_from(v, first), Transpose::yes,
                      dprobability, false);
        gradient_block(block, scale, statistics, score, dprobability, probability_factors.data, dscore_factors.data);
        const StridedMatrix<T> probabilities{probability_factors.data, columns}, ds{dscore_factors.data, columns};
        block_product(context, columns, value_dim, rows, probabilities, Transpose::yes, dout_rows, Transpose::no,
                      dv.as<float>().data() + first * value_dim, true);
        block_product(context, columns, head_dim, rows, ds, Transpose::yes, q_rows, Transpose::no,
                      dk.as<float>().data() + first * head_dim, true);
        block_product(context, rows, head_dim, columns, ds, Transpose::no, rows_from(k, first), Transpose::no,
                      dq.as<float>().data(), !block.first);
      });
      store_rows(dq.as<float>().data(), nullptr, rows, head_dim, dq_out + row * dq_stride, dq_stride);
    });
  }

  void run(ConstTensorView dout, const AttentionInputs& inputs, ConstTensorView out, ConstTensorView log_sum_exp,
           const AttentionGradients& gradients) {
    const std::int64_t length = heads.sequence_length, queries = query_rows(runs);
    const std::int64_t head_dim = heads.head_dim, value_dim = heads.value_dim;
    const std::int64_t group = heads.query_heads / heads.key_value_heads;
    const auto store = [&](const Tensor& sums, const HeadColumns<TensorView>& to, std::int64_t first,
                           std::int64_t head) {
      const std::int64_t width = sums.columns();
      store_rows(sums.as<float>().data(), nullptr, length, width, head_from<T>(to, first, head, width),
                 to.rows.columns());
    };
    for (std::int64_t sequence = 0; sequence * length < inputs.k.rows.rows(); ++sequence) {
      const std::int64_t first = sequence * length, first_query = sequence * queries;
      for (std::int64_t pair = 0; pair < heads.key_value_heads; ++pair) {
        k = packed_head<T>(inputs.k, first, pair, length, packed_k);
        v = packed_head<T>(inputs.v, first, pair, length, packed_v);
        fill(dk, 0.0f);
        fill(dv, 0.0f);
        for (std::int64_t head = pair * group; head < (pair + 1) * group; ++head) {
          run_query_head(packed_head<T>(inputs.q, first_query, head, queries, packed_q),
                         packed_head<T>({dout}, first_query, head, queries, packed_dout),
                         columns_from<T>(out, first_query, head * value_dim),
                         columns_from<float>(log_sum_exp, first_query, head).data, begins_from(inputs, first_query),
                         head_from<T>(gradients.q, first_query, head, head_dim), gradients.q.rows.columns());
        }
        store(dk, gradients.k, first, pair);
        store(dv, gradients.v, first, pair);
      }
    }
  }
};

}  // namespace

void attention_forward(KernelContext& context, const HeadShape& heads, QueryRuns runs, const AttentionInputs& inputs,
                       TensorView out, TensorView log_sum_exp) {
  with_element_type(inputs.q.rows.dtype(), [&](auto element) {
    Forward<decltype(element)>{context, heads, runs}.run(inputs, out, log_sum_exp);
  });
}

void attention_backward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView dout,
                        const AttentionInputs& inputs, ConstTensorView out, ConstTensorView log_sum_exp,
                        const AttentionGradients& gradients) {
  with_element_type(inputs.q.rows.dtype(), [&](auto element) {
    Backward<decltype(element)>{context, heads, runs}.run(dout, inputs, out, log_sum_exp, gradients);
  });
}

// One sequence at a time: its queries are a run after the cached positions, its keys a part of its cache.
void attention_cached(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView q,
                      ConstTensorView cache, TensorView out) {
  const std::int64_t capacity = heads.sequence_length, sequences = cache.rows() / capacity;
  const std::int64_t tokens = q.rows() / sequences;
  HeadShape visible = heads;
  visible.sequence_length = position + tokens;
  const Range runs[] = {{position, tokens}};
  Tensor log_sum_exp = context.ledger.allocate(Bucket::workspace, DType::float32, tokens, heads.query_heads);
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    const AttentionInputs inputs = parted_heads(heads, q.rows_from(sequence * tokens, tokens),
                                                cache.rows_from(sequence * capacity, visible.sequence_length));
    cpu::attention_forward(context, visible, runs, inputs, out.rows_from(sequence * tokens, tokens), log_sum_exp);
  }
}

void take_attention_forward_workspace(KernelContext& context, const HeadShape& heads, QueryRuns runs, DType dtype) {
  with_element_type(dtype, [&](auto element) { Forward<decltype(element)>{context, heads, runs}; });
}

void take_attention_backward_workspace(KernelContext& context, const HeadShape& heads, QueryRuns runs, DType dtype) {
  with_element_type(dtype, [&](auto element) { Backward<decltype(element)>{context, heads, runs}; });
}

const AttentionKernels attention_kernels = {
    attention_forward, attention_backward, attention_cached,
    [](const HeadShape&, QueryRuns, DType, bool) { return std::string("in blocks, by the CPU"); }};

}  // namespace weft::cpu
