// Products through cuBLASLt's interface against a naive sum, and what is refused.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

#include "fixture.h"

namespace weft::cuda_emulator {
namespace {

// Row-major D[m, n] = op(A) op(B) + beta * D asked for as column-major D^T = op(B)^T op(A)^T, as row-major users do.
struct Product {
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cudaDataType input = CUDA_R_32F, output = CUDA_R_32F;
  std::uint64_t m = 7, n = 5, k = 19;
  std::int64_t shorten_leading = 0;
  std::uint32_t alignment = 4;
  std::size_t workspace_missing = 0;

  cublasStatus_t run(cublasLtHandle_t handle, cudaStream_t stream, const void* a, const void* b, void* d, float beta) {
    const bool turned_a = transpose_a == CUBLAS_OP_T, turned_b = transpose_b == CUBLAS_OP_T;
    cublasLtMatmulDescOpaque_t description;
    cublasLtMatrixLayoutOpaque_t left, right, result;
    cublasLtMatmulPreferenceOpaque_t preference;
    // op(B)^T comes first; a row-major matrix is a column-major one of its transpose.
    cublasLtMatmulDescInit(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&description, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_b, sizeof transpose_b);
    cublasLtMatmulDescSetAttribute(&description, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_a, sizeof transpose_a);
    const std::uint64_t b_rows = turned_b ? n : k, b_columns = turned_b ? k : n;
    const std::uint64_t a_rows = turned_a ? k : m, a_columns = turned_a ? m : k;
    cublasLtMatrixLayoutInit(&left, input, b_columns, b_rows, static_cast<std::int64_t>(b_columns) - shorten_leading);
    cublasLtMatrixLayoutInit(&right, input, a_columns, a_rows, static_cast<std::int64_t>(a_columns));
    cublasLtMatrixLayoutInit(&result, output, n, m, static_cast<std::int64_t>(n));
    cublasLtMatmulPreferenceInit(&preference);
    const std::uint64_t workspace_bytes = 1 << 20;
    cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, 8);
    for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      cublasLtMatmulPreferenceSetAttribute(&preference, name, &alignment, sizeof alignment);
    cublasLtMatmulHeuristicResult_t choice;
    int choices = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &description, &left, &right, &result, &result,
                                                                 &preference, 1, &choice, &choices);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    void* workspace = nullptr;
    WEFT_CUDA_CHECK(cudaMallocAsync(&workspace, workspace_bytes, stream));
    const float alpha = 1.0f;
    return cublasLtMatmul(handle, &description, &alpha, b, &left, a, &right, &beta, d, &result, d, &result,
                          &choice.algo, workspace, workspace_bytes - workspace_missing, stream);
  }
};

class CublasLt : public EmulatorTest {
 protected:
  void SetUp() override {
    EmulatorTest::SetUp();
    ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    stream = make_stream();
  }
  void TearDown() override {
    cublasLtDestroy(handle);
    EmulatorTest::TearDown();
  }
  // Small integers: every sum is exact in float32 and every value in 16 bits.
  static std::vector<float> integers(std::size_t count, unsigned factor) {
    std::vector<float> values(count);
    for (unsigned i = 0; i < count; ++i) values[i] = static_cast<float>(i * factor % 7) - 3.0f;
    return values;
  }
  static void* upload_as(cudaDataType type, const std::vector<float>& values) {
    if (type == CUDA_R_32F) return upload(values);
    if (type == CUDA_R_16F) return upload(std::vector<__half>(values.begin(), values.end()));
    std::vector<__nv_bfloat16> narrow;
    for (const float value : values) narrow.push_back(__float2bfloat16(value));
    return upload(narrow);
  }
  static std::vector<float> download_as(cudaDataType type, cudaStream_t on, const void* data, std::size_t count) {
    if (type == CUDA_R_32F) return download(on, static_cast<const float*>(data), count);
    std::vector<float> wide;
    if (type == CUDA_R_16F) {
      for (const auto value : download(on, static_cast<const __half*>(data), count))
        wide.push_back(__half2float(value));
      return wide;
    }
    for (const auto value : download(on, static_cast<const __nv_bfloat16*>(data), count))
      wide.push_back(__bfloat162float(value));
    return wide;
  }

  cublasLtHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
};

TEST_F(CublasLt, AgreesWithANaiveProduct) {
  const std::pair<cudaDataType, cudaDataType> types[] = {{CUDA_R_32F, CUDA_R_32F},
                                                         {CUDA_R_16BF, CUDA_R_32F},
                                                         {CUDA_R_16BF, CUDA_R_16BF},
                                                         {CUDA_R_16F, CUDA_R_32F},
                                                         {CUDA_R_16F, CUDA_R_16F}};
  for (const auto& [input, output] : types) {
    for (const bool turned_a : {false, true}) {
      for (const bool turned_b : {false, true}) {
        for (const float beta : {0.0f, 1.0f}) {
          Product product{turned_a ? CUBLAS_OP_T : CUBLAS_OP_N, turned_b ? CUBLAS_OP_T : CUBLAS_OP_N, input, output};
          const auto [m, n, k] = std::tuple(product.m, product.n, product.k);
          const auto a = integers(m * k, 3), b = integers(k * n, 5);
          // With beta 0 what was there must not matter.
          const auto before = beta == 0.0f ? std::vector<float>(m * n, NAN) : integers(m * n, 2);
          void* d = upload_as(output, before);
          ASSERT_EQ(product.run(handle, stream, upload_as(input, a), upload_as(input, b), d, beta),
                    CUBLAS_STATUS_SUCCESS);
          const auto found = download_as(output, stream, d, m * n);
          for (std::uint64_t row = 0; row < m; ++row) {
            for (std::uint64_t column = 0; column < n; ++column) {
              float sum = 0.0f;
              for (std::uint64_t i = 0; i < k; ++i)
                sum += a[turned_a ? i * m + row : row * k + i] * b[turned_b ? column * k + i : i * n + column];
              if (beta != 0.0f) sum += before[row * n + column];
              EXPECT_EQ(found[row * n + column], sum) << row << ", " << column;
            }
          }
        }
      }
    }
  }
}

TEST_F(CublasLt, RefusesWhatDoesNotFit) {
  float* a = upload(std::vector<float>(256));
  float* d = upload(std::vector<float>(256));
  const auto status = [&](Product product, const float* left) { return product.run(handle, stream, left, a, d, 0.0f); };
  EXPECT_EQ(status({}, a), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(status({.shorten_leading = 1}, a), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status({.output = CUDA_R_16BF}, a), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status({.input = CUDA_R_16F, .output = CUDA_R_16BF}, a), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status({.input = CUDA_R_64F}, a), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status({.workspace_missing = 256}, a), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status({.alignment = 256}, a + 1), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status({.m = 16}, a), CUBLAS_STATUS_INVALID_VALUE);  // a has 256 elements, not 16 x 19
  const std::vector<float> host(256);
  EXPECT_EQ(status({}, host.data()), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace weft::cuda_emulator
