// cuDNN's kernels against plain loops in double, on whatever GPU there is.
#include "layers/kernels/cuda/cudnn_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cuda/device_matrix.h"
#include "tests/layers/attention_case.h"

namespace weft {
namespace {

// Within the tolerance; what nobody writes stays NaN.
void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool near = std::isnan(expected[i]) ? std::isnan(found[i]) : std::abs(found[i] - expected[i]) <= tolerance;
    ASSERT_TRUE(near) << what << " element " << i << ": " << found[i] << " for " << expected[i] << ", tolerance "
                      << tolerance;
  }
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0;
  for (double value : values) {
    if (!std::isnan(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

struct Result {
  std::vector<double> out, log_sum_exp, dq, dkv;
};

class CudnnAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no GPU to run on: " << cudaGetErrorString(status);
    }
    cudaDeviceProp properties{};
    WEFT_TEST_CUDA(cudaGetDeviceProperties(&properties, 0));
    compute_capability = properties.major * 10 + properties.minor;
  }

  // Rounds the inputs of `values` to the type of their shape.
  static Result run(AttentionCase& values, CudnnAttention& attention) {
    return values.shape.type == GraphType::float16 ? run_in<float16>(values, attention)
                                                   : run_in<bfloat16>(values, attention);
  }
  template <typename T>
  static Result run_in(AttentionCase& values, CudnnAttention& attention) {
    DeviceMatrix<T> q(values.q), kv(values.kv), dout(values.dout), out(values.out), dq(values.dq), dkv(values.dkv);
    DeviceMatrix<float> log_sum_exp(values.log_sum_exp);
    DeviceMatrix<std::int32_t> documents(values.document_begins);
    const AttentionPlaces places = values.places();
    const auto at = [&](const DeviceMatrix<T>& matrix, AttentionTensor tensor) {
      return matrix.at(places.at(tensor).offset);
    };
    const bool fused = values.kv.empty();
    const DeviceMatrix<T>&keys = fused ? q : kv, &dkeys = fused ? dq : dkv;
    float* statistics = log_sum_exp.at(places.at(AttentionTensor::log_sum_exp).offset);
    std::vector<DeviceMemory> workspaces;
    const auto allocate = [&](std::int64_t bytes) { return workspaces.emplace_back(bytes).get(); };
    CudnnPointers pointers{{AttentionTensor::q, at(q, AttentionTensor::q)},
                           {AttentionTensor::k, at(keys, AttentionTensor::k)},
                           {AttentionTensor::v, at(keys, AttentionTensor::v)},
                           {AttentionTensor::out, at(out, AttentionTensor::out)},
                           {AttentionTensor::log_sum_exp, statistics}};
    if (values.shape.document_rows > 0) {
      pointers[AttentionTensor::document_begins] = documents.at(values.row_offset);
    }
    attention.forward(nullptr, values.shape, pointers, allocate);
    pointers.insert({{AttentionTensor::dout, at(dout, AttentionTensor::dout)},
                     {AttentionTensor::dq, at(dq, AttentionTensor::dq)},
                     {AttentionTensor::dk, at(dkeys, AttentionTensor::dk)},
                     {AttentionTensor::dv, at(dkeys, AttentionTensor::dv)}});
    attention.backward(nullptr, values.shape, pointers, allocate);
    WEFT_TEST_CUDA(cudaDeviceSynchronize());
    return {out.values(), log_sum_exp.values(), dq.values(), dkv.values()};
  }

  // The bounds of AttentionTest (tests/layers/attention_test.cpp) with e = 2^-8, or 2^-11 for float16. Gradients of
  // keys are rounded once a query head before they are summed, hence 2 + group. exp is 2^x to 2^-21, eight units of
  // float32, of each power.
  void check(AttentionCase values, const std::string& what) {
    for (bool deterministic : {false, true}) {
      SCOPED_TRACE(what + (deterministic ? ", deterministic" : ""));
      CudnnAttention attention({.deterministic = deterministic});
      const Result found = run(values, attention);
      AttentionCase expected = values;
      reference_attention(expected);
      const HeadShape& heads = values.shape.heads;
      const double d = static_cast<double>(std::max(heads.head_dim, heads.value_dim)),
                   keys = static_cast<double>(heads.sequence_length);
      const double group = static_cast<double>(heads.query_heads) / static_cast<double>(heads.key_value_heads);
      const double float_error = 0x1.0p-24 * (d * std::sqrt(d) + keys + 8);
      const double rounding = values.shape.type == GraphType::float16 ? 0x1.0p-11 : 0x1.0p-8;
      expect_near(found.out, expected.out, 5 * (float_error + 2 * rounding), "out");
      expect_near(found.log_sum_exp, expected.log_sum_exp, 5 * float_error, "log-sum-exp");
      const double mass = std::max(largest_magnitude(expected.dq), largest_magnitude(expected.dkv));
      const double gradient =
          (float_error + (2 + group) * rounding) * (mass + 5 * std::sqrt(d) + group * std::sqrt(keys));
      expect_near(found.dq, expected.dq, gradient, "dq");
      expect_near(found.dkv, expected.dkv, gradient, "dkv");
    }
  }

  int compute_capability = 0;
};

TEST_F(CudnnAttentionTest, AgreesWithPlainLoops) {
  for (const auto& [query_heads, key_value_heads] : {std::pair{4, 4}, {4, 2}, {8, 1}}) {
    for (std::int64_t head_dim : {64, 128}) {
      for (std::int64_t length : {1, 17, 128, 321}) {
        for (bool causal : {true, false}) {
          AttentionCase values = fused_case({query_heads, key_value_heads, head_dim, length}, 2);
          values.shape.causal = causal;
          for (GraphType type : {GraphType::bfloat16, GraphType::float16}) {
            values.shape.type = type;
            check(values, fmt::format("type {}, {}/{} heads of {}, length {}, causal {}", static_cast<int>(type),
                                      query_heads, key_value_heads, head_dim, length, causal));
          }
        }
      }
    }
  }
}

TEST_F(CudnnAttentionTest, AgreesForDocuments) {
  for (const std::int64_t length : {128, 321}) {
    for (const std::int64_t window : {0, 50}) {
      const HeadShape heads{8, 2, 128, length, 128, {window}};
      const Range whole[] = {{0, length}}, runs[] = {{16, 16}, {64, 40}};
      check(with_documents(fused_case(heads, 2), whole, 5), fmt::format("length {}, window {}", length, window));
      check(with_documents(run_case(heads, 2, 56, 16, runs[1]), runs, 6), "a run");
    }
  }
}

TEST_F(CudnnAttentionTest, AgreesForHeadDim256) {
  AttentionCase values = fused_case({4, 2, 256, 200}, 1);
  const auto refusal = cudnn_attention_refusal(values.shape, compute_capability);
  if (refusal) GTEST_SKIP() << *refusal;
  check(values, "heads of 256");
}

TEST_F(CudnnAttentionTest, AgreesForValuesOfAnotherWidthThanKeys) {
  for (const std::int64_t value_dim : {64, 128}) {
    AttentionCase values = fused_case({4, 2, 96, 200, value_dim}, 1);
    const auto refusal = cudnn_attention_refusal(values.shape, compute_capability);
    if (refusal) GTEST_SKIP() << *refusal;
    check(values, fmt::format("keys of 96, values of {}", value_dim));
  }
}

TEST_F(CudnnAttentionTest, AgreesForWindows) {
  for (const std::int64_t window : {1, 60, 128, 200}) {
    check(fused_case({4, 2, 128, 320, 128, {window}}, 2), fmt::format("window {}", window));
    check(run_case({4, 2, 128, 320, 128, {window}}, 2, 160, 80, {240, 80}), fmt::format("a run, window {}", window));
  }
}

// Context-parallel runs. The first rank of two holds queries 0..79 and 240..319, the second the middle.
TEST_F(CudnnAttentionTest, AgreesForRunsOfQueries) {
  const HeadShape heads{4, 2, 128, 320};
  check(run_case(heads, 2, 160, 0, {0, 80}), "run at 0");
  check(run_case(heads, 2, 160, 80, {240, 80}), "run at 240");
  check(run_case(heads, 2, 160, 0, {80, 80}), "run at 80");
  check(run_case(heads, 2, 160, 80, {160, 80}), "run at 160");
  check(run_case(heads, 2, 20, 3, {131, 17}), "run at 131");
  AttentionCase half = run_case(heads, 2, 160, 80, {160, 80});
  half.shape.type = GraphType::float16;
  check(half, "run at 160 of float16");
}

// Log-sum-exp [batch, head, token], the layout cuDNN itself would choose: if this passes where the others fail, the
// strides of the log-sum-exp are to blame.
TEST_F(CudnnAttentionTest, AgreesWithPackedLogSumExp) {
  AttentionCase values = fused_case({4, 2, 128, 200}, 2);
  values.shape.log_sum_exp = {4 * 200, 200, 1};
  check(values, "packed log-sum-exp");
}

TEST_F(CudnnAttentionTest, DeterministicBackwardRepeatsItself) {
  AttentionCase values = fused_case({8, 2, 128, 700}, 2);
  CudnnAttention attention({.deterministic = true});
  const Result first = run(values, attention), second = run(values, attention);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.dq, second.dq);
}

TEST_F(CudnnAttentionTest, AsksForTheWorkspaceItAnnounces) {
  AttentionCase values = fused_case({8, 2, 128, 512}, 2);
  CudnnAttention attention;
  EXPECT_GE(attention.backward_workspace_bytes(values.shape),
            row_sums_bytes(values.shape) + dq_accumulator_bytes(values.shape, false));
  // No matrix of queries x keys: that would be 2 * 8 * 512 * 512 elements a copy.
  EXPECT_LT(attention.forward_workspace_bytes(values.shape), 2 * 8 * 512 * 512 * 2);
}

}  // namespace
}  // namespace weft
