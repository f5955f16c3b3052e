#include "parallel/runtime/elementwise.h"
#include "tests/layers/attention_fixture.h"

namespace weft {
namespace {

TEST_F(AttentionTest, AgreesWithTheFullMatrixAtEveryLength) {
  for (DType dtype : float_types) {
    for (std::int64_t length : {1, 5, 64, 100, 300}) check(dtype, {2, 1, 16, length}, 2);
  }
}

TEST_F(AttentionTest, AgreesForEveryGroupAndHeadSize) {
  for (DType dtype : float_types) {
    for (std::int64_t head_dim : {2, 16, 64}) {
      check(dtype, {4, 4, head_dim, 70}, 3);
      check(dtype, {4, 2, head_dim, 70}, 3);
      check(dtype, {4, 1, head_dim, 70}, 3);
    }
  }
}

// Keys wider than values, as in latent attention, and narrower ones.
TEST_F(AttentionTest, TakesValuesOfAnotherWidthThanKeys) {
  for (DType dtype : float_types) {
    check(dtype, {4, 2, 24, 70, 16}, 2);
    check(dtype, {4, 4, 6, 70, 10}, 2);
    check(dtype, {2, 1, 192, 70, 128}, 1);
    check(dtype, {2, 1, 64, 70, 130}, 1);
  }
}

// Windows inside a stripe of queries and a block of keys, at their edges, over several, and longer than the sequence.
TEST_F(AttentionTest, SeesTheKeysOfItsWindowOnly) {
  for (DType dtype : float_types) {
    for (std::int64_t window : {1, 2, 15, 16, 63, 64, 65, 255, 256, 257, 299, 300, 1000}) {
      check(dtype, {2, 1, 16, 300, 16, {window}}, 2);
    }
    check(dtype, {4, 2, 6, 600, 10, {130}}, 1);
  }
}

// Documents of a sequence have what they have alone: forward and gradient. They begin inside stripes of queries and
// blocks of keys, at their edges, follow each other token by token, and differ between the sequences.
TEST_F(AttentionTest, KeepsDocumentsApart) {
  for (DType dtype : float_types) {
    for (const HeadShape& heads :
         {HeadShape{2, 1, 16, 300}, HeadShape{4, 2, 6, 300, 10}, HeadShape{2, 2, 16, 300, 16, {40}}}) {
      const std::vector<std::vector<std::int64_t>> starts = {{0}, {0, 1, 2, 3, 70, 299}, {0, 64, 128, 255, 256, 257}};
      const Run found = run(dtype, heads, 3, document_begins(starts, heads.sequence_length));
      const std::vector<double> qkv = doubles(found.qkv), dout = doubles(found.dout);
      std::vector<double> out, log_sum_exp, gradient;
      const auto append = [](std::vector<double>& to, const std::vector<double>& more) {
        to.insert(to.end(), more.begin(), more.end());
      };
      for (std::size_t s = 0; s < starts.size(); ++s) {
        for (std::size_t d = 0; d < starts[s].size(); ++d) {
          const std::int64_t end = d + 1 < starts[s].size() ? starts[s][d + 1] : heads.sequence_length;
          HeadShape alone = heads;
          alone.sequence_length = end - starts[s][d];
          const std::int64_t first = static_cast<std::int64_t>(s) * heads.sequence_length + starts[s][d];
          const auto rows = [&](const std::vector<double>& all, std::int64_t columns) {
            return std::vector<double>(all.begin() + first * columns,
                                       all.begin() + (first + alone.sequence_length) * columns);
          };
          const reference::AttentionResult expected = reference::attention(alone, rows(qkv, heads.columns()));
          append(out, expected.out);
          append(log_sum_exp, expected.log_sum_exp);
          append(gradient,
                 reference::attention_gradient(alone, rows(qkv, heads.columns()), rows(dout, heads.output_columns())));
        }
      }
      const std::string what =
          fmt::format(" in {} of {}, window {}", name_of(dtype), heads.head_dim, heads.first_key.window);
      reference::expect_near(doubles(found.out), out, out_tolerance(dtype, heads), "out" + what);
      reference::expect_near(doubles(found.log_sum_exp), log_sum_exp, out_tolerance(DType::float32, heads),
                             "log-sum-exp" + what);
      reference::expect_near(doubles(found.dqkv), gradient,
                             gradient_tolerance(dtype, heads, reference::largest_magnitude(gradient)),
                             "gradient" + what);
    }
  }
}

TEST(FirstKey, CountsTheKeysThatItShows) {
  for (std::int64_t window : {0, 1, 2, 5, 9, 40}) {
    const FirstKey first{window};
    EXPECT_TRUE(first.is_window()) << window;
    for (std::int64_t begin : {0, 1, 4, 8, 9, 20}) {
      for (std::int64_t count : {0, 1, 3, 30}) {
        double keys = 0;
        for (std::int64_t p = begin; p < begin + count; ++p) keys += static_cast<double>(p - first(p) + 1);
        EXPECT_EQ(first.keys_seen({begin, count}), keys) << window << " from " << begin << ", " << count;
      }
    }
    for (std::int64_t p = 0; p < 50; ++p) {
      EXPECT_EQ(first(p), window == 0 ? 0 : std::max<std::int64_t>(p - window + 1, 0));
    }
  }
}

// Ranks that share a sequence: each computes some queries against all keys. Rows of a query do not depend on the rank
// that computes it, up to the rounding of blocks cut elsewhere. The gradients of keys and values add up.
class AttentionRuns : public AttentionTest {
 protected:
  void check(DType dtype, std::int64_t length, const std::vector<Range>& one, const std::vector<Range>& other) {
    check(dtype, {4, 2, 6, length}, one, other);
    check(dtype, {4, 2, 6, length, 10}, one, other);
    for (std::int64_t window : {1, 9, 70}) check(dtype, {4, 2, 6, length, 6, {window}}, one, other);
    check(dtype, {4, 2, 6, length}, one, other, document_begins({{0, 3, 8, 31}, {0, 6, 7, 20}}, length));
  }
  void check(DType dtype, const HeadShape& heads, const std::vector<Range>& one, const std::vector<Range>& other,
             const std::vector<double>& begins = {}) {
    constexpr std::int64_t sequences = 2;
    const std::int64_t length = heads.sequence_length, out_columns = 4 * heads.value_dim;
    const std::int64_t query_columns = 4 * 6, kv_columns = 2 * (6 + heads.value_dim);
    const Run whole = run(dtype, heads, sequences, begins);
    const std::vector<double> expected_out = doubles(whole.out), expected_gradient = doubles(whole.dqkv);
    const double out_error = 2 * out_tolerance(dtype, heads);
    const double gradient_error = 4 * gradient_tolerance(dtype, heads, reference::largest_magnitude(expected_gradient));
    std::vector<double> kv_gradient(static_cast<std::size_t>(sequences * length * kv_columns), 0.0);
    for (const std::vector<Range>& runs : {one, other}) {
      std::vector<std::int64_t> rows;
      for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
        for (const Range& part : runs) {
          for (std::int64_t i = 0; i < part.count; ++i) rows.push_back(sequence * length + part.begin + i);
        }
      }
      const auto count = static_cast<std::int64_t>(rows.size());
      Tensor q = poisoned(dtype, count, heads.columns()), part_dout = poisoned(dtype, count, out_columns);
      for (std::int64_t i = 0; i < count; ++i) {
        cast(*stream, whole.qkv.view().rows_from(rows[i], 1), q.view().rows_from(i, 1));
        cast(*stream, whole.dout.view().rows_from(rows[i], 1), part_dout.view().rows_from(i, 1));
      }
      Tensor out = poisoned(dtype, count, out_columns), sums = poisoned(DType::float32, count, 4);
      Tensor dq = poisoned(dtype, count, heads.columns()), dkv = poisoned(dtype, sequences * length, kv_columns);
      Tensor kv = poisoned(dtype, sequences * length, kv_columns);
      copy_columns(*stream, whole.qkv, query_columns, kv, 0, kv_columns);
      AttentionInputs inputs = parted_heads(heads, ConstTensorView(q), ConstTensorView(kv));
      Tensor documents;
      if (!begins.empty()) {
        std::vector<double> of_rows;
        for (const std::int64_t row : rows) of_rows.push_back(begins[static_cast<std::size_t>(row)]);
        inputs.document_begins = documents = tensor_of(DType::int32, count, 1, of_rows);
      }
      attention_forward(context, heads, runs, inputs, out, sums);
      attention_backward(context, heads, runs, part_dout, inputs, out, sums,
                         parted_heads(heads, dq.view(), dkv.view()));
      const std::vector<double> found_out = doubles(out), found_dq = doubles(dq), found_dkv = doubles(dkv);
      for (std::int64_t i = 0; i < count; ++i) {
        for (std::int64_t column = 0; column < out_columns; ++column) {
          ASSERT_NEAR(found_out[static_cast<std::size_t>(i * out_columns + column)],
                      expected_out[static_cast<std::size_t>(rows[i] * out_columns + column)], out_error);
        }
        for (std::int64_t column = 0; column < query_columns; ++column) {
          ASSERT_NEAR(found_dq[static_cast<std::size_t>(i * heads.columns() + column)],
                      expected_gradient[static_cast<std::size_t>(rows[i] * heads.columns() + column)], gradient_error);
        }
      }
      for (std::size_t i = 0; i < kv_gradient.size(); ++i) kv_gradient[i] += found_dkv[i];
    }
    for (std::int64_t row = 0; row < sequences * length; ++row) {
      for (std::int64_t column = 0; column < kv_columns; ++column) {
        ASSERT_NEAR(kv_gradient[static_cast<std::size_t>(row * kv_columns + column)],
                    expected_gradient[static_cast<std::size_t>(row * heads.columns() + query_columns + column)],
                    gradient_error);
      }
    }
  }
};

TEST_F(AttentionRuns, MakeUpTheWholeSequence) {
  for (DType dtype : float_types) {
    check(dtype, 40, {{0, 7}, {30, 10}}, {{7, 23}});
    // A stripe of queries begins in front of a block of keys that only its later rows reach.
    check(dtype, 300, {{0, 7}, {250, 50}}, {{7, 243}});
  }
}

// Queries, keys and values at odd columns of three matrices, and gradients in three others: what is computed does not
// depend on where it lies.
TEST_F(AttentionTest, TakesHeadsFromAnyColumns) {
  for (DType dtype : float_types) {
    const HeadShape heads{4, 2, 6, 40};
    const std::int64_t tokens = 2 * heads.sequence_length, q_columns = 4 * 6, k_columns = 2 * 6;
    const Run fused = run(dtype, heads, 2);
    const auto placed = [&](std::int64_t width, std::int64_t from, std::int64_t to, std::int64_t columns) {
      Tensor matrix = poisoned(dtype, tokens, width);
      copy_columns(*stream, fused.qkv, from, matrix, to, columns);
      return matrix;
    };
    const Tensor q = placed(31, 0, 5, q_columns), k = placed(17, heads.key_column(), 3, k_columns);
    const Tensor v = placed(13, heads.value_column(), 1, k_columns);
    const AttentionInputs inputs(AttentionHeads<ConstTensorView>{{q, 5}, {k, 3}, {v, 1}});
    Tensor out = poisoned(dtype, tokens, q_columns), sums = poisoned(DType::float32, tokens, 4);
    Tensor dq = poisoned(dtype, tokens, 29), dk = poisoned(dtype, tokens, 14), dv = poisoned(dtype, tokens, 19);
    const Range runs[] = {{0, heads.sequence_length}};
    attention_forward(context, heads, runs, inputs, out, sums);
    attention_backward(context, heads, runs, fused.dout, inputs, out, sums, {{dq, 2}, {dk, 0}, {dv, 7}});
    Tensor gradient = poisoned(dtype, tokens, heads.columns());
    copy_columns(*stream, dq, 2, gradient, 0, q_columns);
    copy_columns(*stream, dk, 0, gradient, heads.key_column(), k_columns);
    copy_columns(*stream, dv, 7, gradient, heads.value_column(), k_columns);
    EXPECT_EQ(doubles(out), doubles(fused.out));
    EXPECT_EQ(doubles(gradient), doubles(fused.dqkv));
  }
}

TEST_F(AttentionTest, StaysFiniteForLargeScores) {
  const HeadShape heads{1, 1, 16, 300};
  std::vector<double> values = doubles(random("qkv", DType::float32, 300, heads.columns()));
  for (double& value : values) value *= 30.0;  // scores near 30^2 * 4, far beyond the range of exp
  const Tensor qkv = tensor_of(DType::float32, 300, heads.columns(), values);
  Tensor out = poisoned(DType::float32, 300, 16), log_sum_exp = poisoned(DType::float32, 300, 1);
  const Range runs[] = {{0, 300}};
  attention_forward(context, heads, runs, fused_heads(heads, ConstTensorView(qkv)), out, log_sum_exp);
  const reference::AttentionResult expected = reference::attention(heads, doubles(qkv));
  // Scores of up to 1e4 carry absolute errors of 16 sqrt(16) epsilon * 900, which the exponential turns relative.
  const double relative = 64 * roundoff(DType::float32) * 900;
  reference::expect_near(doubles(out), expected.out, 5 * 30 * relative, "out");
}

// The reference's own gradient against central differences of its forward: <dout, out(x + h e) - out(x - h e)> / 2h.
TEST_F(AttentionTest, ReferenceGradientIsTheDerivative) {
  const HeadShape heads{2, 1, 4, 6};
  std::vector<double> qkv = doubles(random("qkv", DType::float32, 12, heads.columns()));
  const std::vector<double> dout = doubles(random("dout", DType::float32, 12, 8));
  const std::vector<double> gradient = reference::attention_gradient(heads, qkv, dout);
  constexpr double step = 1e-5;
  for (std::size_t i = 0; i < qkv.size(); ++i) {
    const double at = qkv[i];
    qkv[i] = at + step;
    const double above = reference::inner_product(dout, reference::attention(heads, qkv).out);
    qkv[i] = at - step;
    const double below = reference::inner_product(dout, reference::attention(heads, qkv).out);
    qkv[i] = at;
    // Truncation is step^2 times a third derivative of order 100; cancellation is 2^-53 * 100 / step.
    ASSERT_NEAR(gradient[i], (above - below) / (2 * step), 1e-8 + 2e-9) << "element " << i;
  }
}

TEST_F(AttentionTest, GradientIsTheDerivativeOfTheReference) {
  for (DType dtype : float_types) {
    const HeadShape heads{2, 1, 4, 70};
    const Run found = run(dtype, heads, 1);
    std::vector<double> qkv = doubles(found.qkv);
    const std::vector<double> dout = doubles(found.dout), gradient = doubles(found.dqkv);
    const double tolerance = gradient_tolerance(dtype, heads, reference::largest_magnitude(gradient)) + 1e-6;
    constexpr double step = 1e-4;
    for (std::size_t i = 0; i < qkv.size(); i += 13) {
      const double at = qkv[i];
      qkv[i] = at + step;
      const double above = reference::inner_product(dout, reference::attention(heads, qkv).out);
      qkv[i] = at - step;
      const double below = reference::inner_product(dout, reference::attention(heads, qkv).out);
      qkv[i] = at;
      ASSERT_NEAR(gradient[i], (above - below) / (2 * step), tolerance) << name_of(dtype) << " element " << i;
    }
  }
}

TEST_F(AttentionTest, StoresNoMatrixOfTheSequence) {
  const HeadShape heads{2, 1, 16, 1024};
  const std::int64_t full_matrix = heads.sequence_length * heads.sequence_length * size_of(DType::float32);
  // The products may keep workspace of their own.
  const std::int64_t before = ledger.live()[Bucket::workspace];
  for (DType dtype : float_types) {
    run(dtype, heads, 1);
    EXPECT_LT(ledger.peak_by_bucket()[Bucket::workspace] - before, full_matrix / 4) << name_of(dtype);
    EXPECT_EQ(ledger.live()[Bucket::workspace], before);
    ledger.reset_peak();
  }
}

TEST_F(AttentionTest, SpendsItsTimeInItsPhase) {
  run(DType::float32, {2, 1, 16, 64}, 1);
  EXPECT_GT(clock.seconds(Phase::attention), 0.0);
  EXPECT_EQ(clock.seconds(Phase::elementwise), 0.0);
}

}  // namespace
}  // namespace weft
