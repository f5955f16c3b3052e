#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "trainer/rank/backend.h"

namespace weft {
namespace {

// Headers of one package and a library of another (a toolkit beside PyPI's wheels) compile, link, and fail much later.
TEST(CudaVersions, LibrariesAreThoseOfTheHeaders) {
  int runtime = 0, nccl = 0;
  ASSERT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
  ASSERT_EQ(ncclGetVersion(&nccl), ncclSuccess);
  EXPECT_EQ(runtime, CUDART_VERSION);
  EXPECT_EQ(nccl, NCCL_VERSION_CODE);
  EXPECT_EQ(cudnnGetVersion(), CUDNN_VERSION);
  EXPECT_EQ(cublasLtGetVersion(), CUBLAS_VERSION);
}

TEST(CudaVersions, AreReadable) {
  const std::string expected =
      "CUDA " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10) +
      ", cuBLASLt " + std::to_string(CUBLAS_VER_MAJOR) + "." + std::to_string(CUBLAS_VER_MINOR) + "." +
      std::to_string(CUBLAS_VER_PATCH) + ", cuDNN " + std::to_string(CUDNN_MAJOR) + "." + std::to_string(CUDNN_MINOR) +
      "." + std::to_string(CUDNN_PATCHLEVEL) + ", NCCL " + std::to_string(NCCL_MAJOR) + "." +
      std::to_string(NCCL_MINOR) + "." + std::to_string(NCCL_PATCH);
  EXPECT_EQ(cuda_versions(), expected);
}

}  // namespace
}  // namespace weft
