#include "layers/kernels/attention.h"

#include <cmath>

#include "layers/kernels/cpu/attention_blocks.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

void check(const HeadShape& heads, ConstTensorView qkv, ConstTensorView out, ConstTensorView log_sum_exp) {
  require(heads.key_value_heads > 0 && heads.query_heads % heads.key_value_heads == 0,
          "query heads share key-value heads evenly");
  require(heads.sequence_length > 0 && qkv.rows() % heads.sequence_length == 0, "tokens come in whole sequences");
  require(qkv.columns() == heads.columns(), "qkv holds the columns of every head");
  require(out.rows() == qkv.rows() && out.columns() == heads.query_heads * heads.head_dim && out.dtype() == qkv.dtype(),
          "the output holds the columns of every query head");
  require(log_sum_exp.rows() == qkv.rows() && log_sum_exp.columns() == heads.query_heads,
          "one log-sum-exp a token and query head");
}

float score_scale(const HeadShape& heads) {
  return 1.0f / std::sqrt(static_cast<float>(heads.head_dim));
}
std::int64_t widest_block(const HeadShape& heads) {
  return std::min(key_block, heads.sequence_length);
}

// The columns of one head in the rows of one sequence.
template <typename T>
StridedMatrix<T> head_of(ConstTensorView tensor, std::int64_t first_row, std::int64_t head, std::int64_t head_dim) {
  return {tensor.as<T>().data() + first_row * tensor.columns() + head * head_dim, tensor.columns()};
}
template <typename T>
T* head_of(TensorView tensor, std::int64_t first_row, std::int64_t head, std::int64_t head_dim) {
  return tensor.as<T>().data() + first_row * tensor.columns() + head * head_dim;
}

template <typename T>
struct Forward {
  Forward(KernelContext& kernel_context, const HeadShape& shape)
      : context(kernel_context),
        heads(shape),
        scores(context.ledger.allocate(Bucket::workspace, DType::float32, query_block, widest_block(shape))),
        stripe(context.ledger.allocate(Bucket::workspace, DType::float32, query_block, shape.head_dim)),
        statistics(context.ledger.allocate(Bucket::workspace, DType::float32, 2, query_block)),
        probabilities(context, scores),
        packed_q(allocate_packed_head<T>(context, shape)),
        packed_k(allocate_packed_head<T>(context, shape)),
        packed_v(allocate_packed_head<T>(context, shape)) {}

  // `out` and `log_sum_exp` point at the head's first row, whole rows of their tensors apart.
  void run_head(StridedMatrix<T> q, StridedMatrix<T> k, StridedMatrix<T> v, T* out, float* log_sum_exp) {
    const std::int64_t head_dim = heads.head_dim;
    const float scale = score_scale(heads);
    float* score = scores.as<float>().data();
    float* sum_of_values = stripe.as<float>().data();
    const RunningSoftmax softmax{statistics.as<float>().data(), statistics.as<float>().data() + query_block};
    for (std::int64_t row = 0; row < heads.sequence_length; row += query_block) {
      const std::int64_t rows = std::min(query_block, heads.sequence_length - row);
      for_each_block(row, rows, [&](const ScoreBlock& block) {
        block_product(context, rows, block.columns, head_dim, rows_from(q, row), Transpose::no,
                      rows_from(k, block.first_column), Transpose::yes, score, false);
        softmax_block(block, scale, score, probabilities.data, softmax, sum_of_values, head_dim);
        block_product(context, rows, head_dim, block.columns, StridedMatrix<T>{probabilities.data, block.columns},
                      Transpose::no, rows_from(v, block.first_column), Transpose::no, sum_of_values,
                      block.first_column > 0);
      });
      for (std::int64_t r = 0; r < rows; ++r) {
        log_sum_exp[(row + r) * heads.query_heads] = scale * softmax.maximum[r] + std::log(softmax.sum[r]);
        softmax.sum[r] = 1.0f / softmax.sum[r];
      }
      const std::int64_t out_columns = heads.query_heads * head_dim;
      store_rows(sum_of_values, softmax.sum, rows, head_dim, out + row * out_columns, out_columns);
    }
  }

  void run(ConstTensorView qkv, TensorView out, TensorView log_sum_exp) {
    const std::int64_t length = heads.sequence_length, head_dim = heads.head_dim;
    const std::int64_t group = heads.query_heads / heads.key_value_heads;
    StridedMatrix<T> k, v;
    for (std::int64_t first = 0; first < qkv.rows(); first += length) {
      for (std::int64_t head = 0; head < heads.query_heads; ++head) {
        const std::int64_t k_head = heads.query_heads + head / group, v_head = k_head + heads.key_value_heads;
        if (head % group == 0) {
          k = pack_head(head_of<T>(qkv, first, k_head, head_dim), length, head_dim, packed_k.template as<T>().data());
          v = pack_head(head_of<T>(qkv, first, v_head, head_dim), length, head_dim, packed_v.template as<T>().data());
        }
        const StridedMatrix<T> q =
            pack_head(head_of<T>(qkv, first, head, head_dim), length, head_dim, packed_q.template as<T>().data());
        run_head(q, k, v, head_of<T>(out, first, head, head_dim), head_of<float>(log_sum_exp, first, head, 1));
      }
    }
  }

  KernelContext& context;
  const HeadShape& heads;
  Tensor scores, stripe, statistics;
  FactorBlock<T> probabilities;
  Tensor packed_q, packed_k, packed_v;
};

template <typename T>
struct Backward {
  Backward(KernelContext& kernel_context, const HeadShape& shape)
      : context(kernel_context),
        heads(shape),
        scores(context.ledger.allocate(Bucket::workspace, DType::float32, query_block, widest_block(shape))),
        dscores(context.ledger.allocate(Bucket::workspace, DType::float32, query_block, widest_block(shape))),
        dq(context.ledger.allocate(Bucket::workspace, DType::float32, query_block, shape.head_dim)),
        dk(context.ledger.allocate(Bucket::workspace, DType::float32, shape.sequence_length, shape.head_dim)),
        dv(context.ledger.allocate(Bucket::workspace, DType::float32, shape.sequence_length, shape.head_dim)),
        row_products(context.ledger.allocate(Bucket::workspace, DType::float32, 1, query_block)),
        probability_factors(context, scores),
        dscore_factors(context, dscores),
        packed_q(allocate_packed_head<T>(context, shape)),
        packed_dout(allocate_packed_head<T>(context, shape)),
        packed_k(allocate_packed_head<T>(context, shape)),
        packed_v(allocate_packed_head<T>(context, shape)) {}

  // Writes the gradient of one query head and adds to those of its key-value head.
  void run_query_head(StridedMatrix<T> q, StridedMatrix<T> dout, StridedMatrix<T> out, const float* log_sum_exp,
                      T* dq_out) {
    const std::int64_t head_dim = heads.head_dim;
    const float scale = score_scale(heads);
    float* score = scores.as<float>().data();
    float* dprobability = dscores.as<float>().data();
    float* product = row_products.as<float>().data();
    for (std::int64_t row = 0; row < heads.sequence_length; row += query_block) {
      const std::int64_t rows = std::min(query_block, heads.sequence_length - row);
      const StridedMatrix<T> q_rows = rows_from(q, row), dout_rows = rows_from(dout, row);
      multiply_rows(dout_rows, rows_from(out, row), rows, head_dim, product);
      const RowStatistics statistics{log_sum_exp + row * heads.query_heads, heads.query_heads, product};
      for_each_block(row, rows, [&](const ScoreBlock& block) {
        const std::int64_t columns = block.columns, first = block.first_column;
        block_product(context, rows, columns, head_dim, q_rows, Transpose::no, rows_from(k, first), Transpose::yes,
                      score, false);
        block_product(context, rows, columns, head_dim, dout_rows, Transpose::no, rows_from(v, first), Transpose::yes,
                      dprobability, false);
        gradient_block(block, scale, statistics, score, dprobability, probability_factors.data, dscore_factors.data);
        const StridedMatrix<T> probabilities{probability_factors.data, columns}, ds{dscore_factors.data, columns};
        block_product(context, columns, head_dim, rows, probabilities, Transpose::yes, dout_rows, Transpose::no,
                      dv.as<float>().data() + first * head_dim, true);
        block_product(context, columns, head_dim, rows, ds, Transpose::yes, q_rows, Transpose::no,
                      dk.as<float>().data() + first * head_dim, true);
        block_product(context, rows, head_dim, columns, ds, Transpose::no, rows_from(k, first), Transpose::no,
                      dq.as<float>().data(), first > 0);
      });
      store_rows(dq.as<float>().data(), nullptr, rows, head_dim, dq_out + row * heads.columns(), heads.columns());
    }
  }

  void run(ConstTensorView dout, ConstTensorView qkv, ConstTensorView out, ConstTensorView log_sum_exp,
           TensorView dqkv) {
    const std::int64_t length = heads.sequence_length, head_dim = heads.head_dim;
    const std::int64_t group = heads.query_heads / heads.key_value_heads;
    const auto packed = [&](ConstTensorView tensor, std::int64_t first, std::int64_t head, Tensor& workspace) {
      return pack_head(head_of<T>(tensor, first, head, head_dim), length, head_dim, workspace.as<T>().data());
    };
    for (std::int64_t first = 0; first < qkv.rows(); first += length) {
      for (std::int64_t pair = 0; pair < heads.key_value_heads; ++pair) {
        const std::int64_t k_head = heads.query_heads + pair, v_head = k_head + heads.key_value_heads;
        k = packed(qkv, first, k_head, packed_k);
        v = packed(qkv, first, v_head, packed_v);
        fill(dk, 0.0f);
        fill(dv, 0.0f);
        for (std::int64_t head = pair * group; head < (pair + 1) * group; ++head) {
          run_query_head(packed(qkv, first, head, packed_q), packed(dout, first, head, packed_dout),
                         head_of<T>(out, first, head, head_dim), head_of<float>(log_sum_exp, first, head, 1).data,
                         head_of<T>(dqkv, first, head, head_dim));
        }
        store_rows(dk.as<float>().data(), nullptr, length, head_dim, head_of<T>(dqkv, first, k_head, head_dim),
                   heads.columns());
        store_rows(dv.as<float>().data(), nullptr, length, head_dim, head_of<T>(dqkv, first, v_head, head_dim),
                   heads.columns());
      }
    }
  }

  KernelContext& context;
  const HeadShape& heads;
  Tensor scores, dscores, dq, dk, dv, row_products;
  FactorBlock<T> probability_factors, dscore_factors;
  Tensor packed_q, packed_dout, packed_k, packed_v;
  StridedMatrix<T> k, v;
};

}  // namespace

void attention_forward(KernelContext& context, const HeadShape& heads, ConstTensorView qkv, TensorView out,
                       TensorView log_sum_exp) {
  PhaseClock::Scope scope(context.clock, Phase::attention);
  check(heads, qkv, out, log_sum_exp);
  if (qkv.dtype() == DType::bfloat16) {
    Forward<bfloat16>(context, heads).run(qkv, out, log_sum_exp);
  } else {
    Forward<float>(context, heads).run(qkv, out, log_sum_exp);
  }
}

void attention_backward(KernelContext& context, const HeadShape& heads, ConstTensorView dout, ConstTensorView qkv,
                        ConstTensorView out, ConstTensorView log_sum_exp, TensorView dqkv) {
  PhaseClock::Scope scope(context.clock, Phase::attention);
  check(heads, qkv, out, log_sum_exp);
  require(dout.size() == out.size() && dqkv.size() == qkv.size(), "gradients have the shapes of their values");
  if (qkv.dtype() == DType::bfloat16) {
    Backward<bfloat16>(context, heads).run(dout, qkv, out, log_sum_exp, dqkv);
  } else {
    Backward<float>(context, heads).run(dout, qkv, out, log_sum_exp, dqkv);
  }
}

}  // namespace weft
