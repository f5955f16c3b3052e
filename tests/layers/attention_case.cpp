#include "tests/layers/attention_case.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/random.h"

namespace weft {
namespace {

std::vector<double> normal_numbers(std::string_view name, std::int64_t count) {
  const RandomStream stream(11, name);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(stream.normal(i));
  return values;
}
std::vector<double> poison(std::int64_t count) {
  return std::vector<double>(static_cast<std::size_t>(count), std::numeric_limits<double>::quiet_NaN());
}

struct Element {
  MatrixPlace place;
  HeadStrides strides;

  double& operator()(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t column) const {
    return place.at(batch * strides.batch + head * strides.head + row * strides.row + column);
  }
};

}  // namespace

AttentionPlaces AttentionCase::places() {
  std::vector<double>& keys = kv.empty() ? q : kv;
  std::vector<double>& dkeys = kv.empty() ? dq : dkv;
  const std::int64_t out_offset = row_offset * shape.heads.output_columns();
  return {{AttentionTensor::q, {&q, q_offset}},
          {AttentionTensor::k, {&keys, k_offset}},
          {AttentionTensor::v, {&keys, v_offset}},
          {AttentionTensor::out, {&out, out_offset}},
          {AttentionTensor::log_sum_exp, {&log_sum_exp, row_offset * shape.heads.query_heads}},
          {AttentionTensor::dout, {&dout, out_offset}},
          {AttentionTensor::dq, {&dq, q_offset}},
          {AttentionTensor::dk, {&dkeys, k_offset}},
          {AttentionTensor::dv, {&dkeys, v_offset}},
          {AttentionTensor::row_sums, {&row_sums, 0}},
          {AttentionTensor::dq_accumulator, {&dq_accumulator, 0}},
          {AttentionTensor::document_begins, {&document_begins, row_offset}}};
}

AttentionCase run_case(const HeadShape& heads, std::int64_t sequences, std::int64_t rows_per_sequence,
                       std::int64_t run_row, Range run) {
  const std::int64_t columns = heads.columns(), kv_columns = heads.key_value_columns();
  const std::int64_t rows = sequences * rows_per_sequence, out_columns = heads.output_columns();
  const std::int64_t tokens = sequences * heads.sequence_length;
  AttentionCase made;
  const MatrixColumns widths{columns, kv_columns, kv_columns};
  made.shape = run_attention_shape(heads, sequences, rows_per_sequence, run, widths, widths, GraphType::bfloat16);
  made.q = normal_numbers("q", rows * columns);
  made.kv = normal_numbers("kv", tokens * kv_columns);
  made.dout = normal_numbers("dout", rows * out_columns);
  made.out = poison(rows * out_columns);
  made.log_sum_exp = poison(rows * heads.query_heads);
  made.dq = poison(rows * columns);
  made.dkv = poison(tokens * kv_columns);
  made.row_sums = poison(row_sums_bytes(made.shape) / size_of(DType::float32));
  made.dq_accumulator = poison(dq_accumulator_bytes(made.shape, false) / size_of(DType::float32));
  made.row_offset = run_row;
  made.q_offset = run_row * columns;
  made.v_offset = heads.own_value_column();
  return made;
}

AttentionCase fused_case(const HeadShape& heads, std::int64_t sequences) {
  AttentionCase made = run_case(heads, sequences, heads.sequence_length, 0, {0, heads.sequence_length});
  made.shape = fused_attention_shape(heads, sequences, GraphType::bfloat16);
  made.kv.clear();
  made.dkv.clear();
  made.k_offset = heads.key_column();
  made.v_offset += made.k_offset;
  return made;
}

AttentionCase with_documents(AttentionCase values, std::span<const Range> runs, unsigned seed) {
  std::minstd_rand chance(seed);
  for (std::int64_t b = 0; b < values.shape.batch; ++b) {
    double begin = 0;
    std::int64_t position = 0;
    for (const Range& run : runs) {
      for (; position < run.begin + run.count; ++position) {
        if (chance() % 4 == 0) begin = static_cast<double>(position);
        if (position >= run.begin) values.document_begins.push_back(begin);
      }
    }
  }
  values.shape.document_rows = std::ssize(values.document_begins) / values.shape.batch;
  return values;
}

void reference_attention(AttentionCase& values) {
  const AttentionShape& shape = values.shape;
  AttentionPlaces places = values.places();
  const Element q{places[AttentionTensor::q], shape.q}, k{places[AttentionTensor::k], shape.k},
      v{places[AttentionTensor::v], shape.v}, out{places[AttentionTensor::out], shape.out},
      dout{places[AttentionTensor::dout], shape.out}, dq{places[AttentionTensor::dq], shape.dq},
      dk{places[AttentionTensor::dk], shape.dk}, dv{places[AttentionTensor::dv], shape.dv},
      log_sum_exp{places[AttentionTensor::log_sum_exp], shape.log_sum_exp};
  const HeadShape& heads = shape.heads;
  const std::int64_t key_length = heads.sequence_length, key_dim = heads.head_dim, value_dim = heads.value_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(key_dim));
  const std::int64_t group = heads.query_heads / heads.key_value_heads;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < heads.query_heads; ++h) {
      const std::int64_t kh = h / group;
      for (std::int64_t j = 0; h % group == 0 && j < key_length; ++j) {
        for (std::int64_t c = 0; c < key_dim; ++c) dk(b, kh, j, c) = 0;
        for (std::int64_t c = 0; c < value_dim; ++c) dv(b, kh, j, c) = 0;
      }
      for (std::int64_t i = 0; i < shape.query_length; ++i) {
        const std::int64_t seen = shape.causal ? std::min(key_length, shape.query_offset + i + 1) : key_length;
        std::vector<double> p(static_cast<std::size_t>(seen)), dp(p.size());
        double maximum = -std::numeric_limits<double>::infinity(), sum = 0, mean = 0;
        const std::int64_t window = heads.first_key.window, position = shape.query_offset + i;
        const double begin =
            shape.document_rows == 0 ? 0.0 : places[AttentionTensor::document_begins].at(b * shape.document_rows + i);
        for (std::int64_t j = 0; j < seen; ++j) {
          const bool far = window > 0 && position - j >= window, before = static_cast<double>(j) < begin;
          if (shape.causal && (far || before)) p[j] = -std::numeric_limits<double>::infinity();
          for (std::int64_t c = 0; c < key_dim; ++c) p[j] += scale * q(b, h, i, c) * k(b, kh, j, c);
          maximum = std::max(maximum, p[j]);
        }
        for (double score : p) sum += std::exp(score - maximum);
        const double logarithm = log_sum_exp(b, h, i, 0) = maximum + std::log(sum);
        for (double& score : p) score = std::exp(score - logarithm);
        for (std::int64_t c = 0; c < key_dim; ++c) dq(b, h, i, c) = 0;
        for (std::int64_t c = 0; c < value_dim; ++c) out(b, h, i, c) = 0;
        for (std::int64_t j = 0; j < seen; ++j) {
          for (std::int64_t c = 0; c < value_dim; ++c) {
            out(b, h, i, c) += p[j] * v(b, kh, j, c);
            dp[j] += dout(b, h, i, c) * v(b, kh, j, c);
            dv(b, kh, j, c) += p[j] * dout(b, h, i, c);
          }
          mean += p[j] * dp[j];
        }
        for (std::int64_t j = 0; j < seen; ++j) {
          const double dscore = scale * p[j] * (dp[j] - mean);
          for (std::int64_t c = 0; c < key_dim; ++c) {
            dq(b, h, i, c) += dscore * k(b, kh, j, c);
            dk(b, kh, j, c) += dscore * q(b, h, i, c);
          }
        }
      }
    }
  }
}

}  // namespace weft
