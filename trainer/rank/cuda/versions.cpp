#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>

#include "parallel/runtime/error.h"
#include "trainer/rank/backend.h"

namespace weft {

std::string cuda_versions() {
  int runtime = 0, nccl = 0;
  require(cudaRuntimeGetVersion(&runtime) == cudaSuccess, "the CUDA runtime knows its version");
  require(ncclGetVersion(&nccl) == ncclSuccess, "NCCL knows its version");
  const std::size_t cublas = cublasLtGetVersion(), cudnn = cudnnGetVersion();
  // For example 13000, 130100, 91900 and 22809: each library encodes its version in its own way.
  return fmt::format("CUDA {}.{}, cuBLASLt {}.{}.{}, cuDNN {}.{}.{}, NCCL {}.{}.{}", runtime / 1000,
                     runtime % 1000 / 10, cublas / 10000, cublas / 100 % 100, cublas % 100, cudnn / 10000,
                     cudnn / 100 % 100, cudnn % 100, nccl / 10000, nccl / 100 % 100, nccl % 100);
}

}  // namespace weft
