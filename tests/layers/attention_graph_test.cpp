// The graphs handed to cuDNN compute attention and its gradient. Interpreted in double they agree with plain loops on
// every element of every matrix, also on those they must leave alone.
#include "layers/kernels/attention_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/runtime/error.h"
#include "tests/layers/attention_graph_interpreter.h"

namespace weft {
namespace {

// Sums of at most a few hundred terms of order 10 in double: 1e3 * 10 * 2^-53 is 1e-12, times the few products in a
// row.
constexpr double tolerance = 1e-10;

// The largest difference; NaN (an element nobody wrote) agrees with NaN only.
double difference(const std::vector<double>& found, const std::vector<double>& expected) {
  if (found.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(found[i]) && std::isnan(expected[i])) continue;
    const double apart = std::abs(found[i] - expected[i]);
    largest = std::max(largest, std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart);
  }
  return largest;
}

struct Differences {
  double forward = 0, backward = 0;
};

Differences differences(const AttentionCase& inputs, const AttentionGraph& forward, const AttentionGraph& backward) {
  AttentionCase expected = inputs, found = inputs;
  reference_attention(expected);
  interpret(forward, found.places());
  Differences result;
  result.forward = std::max(difference(found.out, expected.out), difference(found.log_sum_exp, expected.log_sum_exp));
  // The backward is judged by itself.
  found.out = expected.out;
  found.log_sum_exp = expected.log_sum_exp;
  interpret(backward, found.places());
  result.backward = std::max(difference(found.dq, expected.dq), difference(found.dkv, expected.dkv));
  EXPECT_EQ(found.q, inputs.q);
  EXPECT_EQ(found.kv, inputs.kv);
  return result;
}

void check(const AttentionCase& inputs, const std::string& what) {
  for (bool deterministic : {false, true}) {
    const Differences found = differences(inputs, attention_forward_graph(inputs.shape),
                                          attention_backward_graph(inputs.shape, deterministic));
    EXPECT_LE(found.forward, tolerance) << what;
    EXPECT_LE(found.backward, tolerance) << what << (deterministic ? ", deterministic" : "");
  }
}

TEST(AttentionGraph, ComputesAttentionOfEveryGroupAndLength) {
  for (const auto& [query_heads, key_value_heads] : {std::pair{2, 2}, {4, 2}, {3, 1}}) {
    for (std::int64_t length : {1, 5, 16, 33}) {
      for (bool causal : {true, false}) {
        AttentionCase inputs = fused_case({query_heads, key_value_heads, 8, length}, 2);
        inputs.shape.causal = causal;
        check(inputs, fmt::format("{}/{} heads, length {}, causal {}", query_heads, key_value_heads, length, causal));
      }
    }
  }
}

// A context-parallel rank: rows 0..2 and 3..9 of its 10 query rows are two runs of a sequence of 24.
TEST(AttentionGraph, ComputesRunsOfQueriesAtTheirPositions) {
  const HeadShape heads{4, 2, 8, 24};
  check(run_case(heads, 2, 10, 0, {5, 3}), "run at 5");
  check(run_case(heads, 2, 10, 3, {17, 7}), "run at 17, the last keys");
  check(run_case(heads, 2, 1, 0, {0, 1}), "the first query alone");
}

TEST(AttentionGraph, ComputesValuesOfAnotherWidthThanKeys) {
  for (const std::int64_t value_dim : {4, 12}) {
    check(fused_case({4, 2, 8, 16, value_dim}, 2), fmt::format("values of {}", value_dim));
    check(fused_case({3, 3, 8, 16, value_dim}, 1), fmt::format("values of {}, a key head each", value_dim));
    check(run_case({4, 2, 8, 24, value_dim}, 2, 10, 3, {17, 7}), fmt::format("a run, values of {}", value_dim));
  }
}

TEST(AttentionGraph, ComputesWindows) {
  for (const std::int64_t window : {1, 3, 16, 40}) {
    check(fused_case({4, 2, 8, 16, 8, {window}}, 2), fmt::format("window {}", window));
    check(run_case({4, 2, 8, 24, 8, {window}}, 2, 10, 3, {17, 7}), fmt::format("a run, window {}", window));
  }
}

TEST(AttentionGraph, ComputesDocuments) {
  for (const std::int64_t window : {0, 3}) {
    const HeadShape heads{4, 2, 8, 24, 8, {window}};
    const Range whole[] = {{0, 24}}, runs[] = {{5, 3}, {17, 7}};
    for (const unsigned seed : {1u, 2u, 3u}) {
      check(with_documents(fused_case(heads, 2), whole, seed), fmt::format("window {}, seed {}", window, seed));
      check(with_documents(run_case(heads, 2, 10, 0, runs[0]), runs, seed), "run at 5");
      check(with_documents(run_case(heads, 2, 10, 3, runs[1]), runs, seed), "run at 17");
    }
  }
}

class AttentionReference : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Windows, AttentionReference, ::testing::Values(0, 2));

TEST_P(AttentionReference, GradientIsTheDerivative) {
  AttentionCase inputs = run_case({2, 1, 4, 7, 4, {GetParam()}}, 1, 3, 0, {2, 3});
  AttentionCase answer = inputs;
  reference_attention(answer);
  constexpr double step = 1e-5;
  const auto loss = [&](AttentionCase moved) {
    reference_attention(moved);
    double sum = 0;
    for (std::size_t i = 0; i < moved.out.size(); ++i) sum += moved.out[i] * moved.dout[i];
    return sum;
  };
  const auto expect_derivative = [&](std::vector<double> AttentionCase::*input, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      if (std::isnan(gradient[i])) continue;  // columns and keys that take no part
      AttentionCase above = inputs, below = inputs;
      (above.*input)[i] += step;
      (below.*input)[i] -= step;
      // Truncation is step^2 times a third derivative of order 100; cancellation is 2^-53 * 100 / step.
      ASSERT_NEAR(gradient[i], (loss(above) - loss(below)) / (2 * step), 1e-8 + 2e-9) << "element " << i;
    }
  };
  expect_derivative(&AttentionCase::q, answer.dq);
  expect_derivative(&AttentionCase::kv, answer.dkv);
}

TEST(AttentionGraph, HasTheOperationsTheEnginesLookFor) {
  AttentionShape shape = fused_attention_shape({4, 2, 8, 16}, 1, GraphType::bfloat16);
  EXPECT_EQ(attention_forward_graph(shape).operations.size(), 14u);
  EXPECT_EQ(attention_backward_graph(shape, false).operations.size(), 24u);
  EXPECT_EQ(attention_backward_graph(shape, true).operations.size(), 23u);
  shape.query_offset = 3;
  EXPECT_EQ(attention_forward_graph(shape).operations.size(), 15u);
  shape.heads.first_key.window = 5;
  EXPECT_EQ(attention_forward_graph(shape).operations.size(), 18u);
  EXPECT_EQ(attention_backward_graph(shape, true).operations.size(), 27u);
  shape.document_rows = 16;
  EXPECT_EQ(attention_forward_graph(shape).operations.size(), 20u);
  EXPECT_EQ(attention_backward_graph(shape, true).operations.size(), 29u);
  shape.causal = false;
  shape.heads.key_value_heads = 4;
  EXPECT_EQ(attention_forward_graph(shape).operations.size(), 10u);
  EXPECT_EQ(attention_backward_graph(shape, false).operations.size(), 18u);
}

// The element type of a call is that of its stored heads and of what its products take, and changes nothing else.
TEST(AttentionGraph, OfFloat16IsThatOfBfloat16WithTheOtherType) {
  const HeadShape heads{4, 2, 8, 16};
  const auto graphs = [&](GraphType type) {
    const AttentionShape shape = fused_attention_shape(heads, 1, type);
    return std::vector{attention_forward_graph(shape), attention_backward_graph(shape, false),
                       attention_backward_graph(shape, true)};
  };
  std::vector<AttentionGraph> half = graphs(GraphType::float16);
  int stored = 0;
  for (AttentionGraph& graph : half) {
    EXPECT_NE(format(graph).find("float16"), std::string::npos);
    for (GraphTensor& tensor : graph.tensors) {
      EXPECT_NE(tensor.type, GraphType::bfloat16) << tensor.name;
      if (tensor.type != GraphType::float16) continue;
      stored += tensor.is_virtual ? 0 : 1;
      tensor.type = GraphType::bfloat16;
    }
  }
  // q, k, v and out; then those, dout and three gradients, twice.
  EXPECT_EQ(stored, 4 + 8 + 8);
  EXPECT_EQ(half, graphs(GraphType::bfloat16));
}

TEST(AttentionGraph, ReadsAsText) {
  const std::string text =
      format(attention_forward_graph(fused_attention_shape({4, 2, 8, 16}, 1, GraphType::bfloat16)));
  EXPECT_NE(text.find("products = matmul(q, k_transposed) float32 [1, 4, 16, 16]"), std::string::npos) << text;
  EXPECT_NE(text.find("log_sum_exp = add(maximum, log_sum) float32 [1, 4, 16, 1] by [64, 1, 4, 1] stored"),
            std::string::npos)
      << text;
}

// A graph that is not attention shows: each pointwise or reducing operation, replaced by another, changes the result.
TEST(AttentionGraph, EveryOperationMatters) {
  const Range run{4, 5};
  const AttentionCase inputs = with_documents(run_case({4, 2, 8, 12}, 1, 5, 0, run), std::span(&run, 1), 8);
  const AttentionGraph forward = attention_forward_graph(inputs.shape),
                       backward = attention_backward_graph(inputs.shape, false);
  const auto replaced = [](GraphOperator op) -> std::optional<GraphOperator> {
    switch (op) {
      case GraphOperator::multiply:
      case GraphOperator::subtract:
      case GraphOperator::divide:
        return GraphOperator::add;
      case GraphOperator::add:
        return GraphOperator::subtract;
      case GraphOperator::exponential:
      case GraphOperator::logarithm:
      case GraphOperator::greater_equal:
        return GraphOperator::identity;
      case GraphOperator::row_index:
        return GraphOperator::column_index;
      case GraphOperator::column_index:
        return GraphOperator::row_index;
      case GraphOperator::reduce_add:
        return GraphOperator::reduce_max;
      default:
        return {};  // data movement, and the maximum, which is there for the range of float32 only
    }
  };
  int faults = 0;
  for (bool in_backward : {false, true}) {
    for (std::size_t i = 0; i < (in_backward ? backward : forward).operations.size(); ++i) {
      AttentionGraph wrong = in_backward ? backward : forward;
      const auto other = replaced(wrong.operations[i].op);
      if (!other) continue;
      wrong.operations[i].op = *other;
      ++faults;
      try {
        const Differences found = differences(inputs, in_backward ? forward : wrong, in_backward ? wrong : backward);
        EXPECT_GT(in_backward ? found.backward : found.forward, 1e-6) << "operation " << i << " of\n" << format(wrong);
      } catch (const Error&) {
        // The logarithm of a negative number is another way to show.
      }
    }
  }
  // 17 and 27 operations, less 5 and 11 that cannot be replaced.
  EXPECT_EQ(faults, 12 + 16);
}

TEST(AttentionGraph, RefusesToReadWhatNobodyWrote) {
  AttentionCase inputs = fused_case({2, 2, 8, 4}, 1);
  AttentionGraph graph = attention_forward_graph(inputs.shape);
  graph.operations.erase(graph.operations.begin());
  EXPECT_ANY_THROW(interpret(graph, inputs.places()));
}

}  // namespace
}  // namespace weft
