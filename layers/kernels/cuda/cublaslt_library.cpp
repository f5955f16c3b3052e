// cuBLASLt's functions, of which the first that is called loads the library. Its tables take 60 ms and 100 MB. If it
// was linked, every command of the program would load them, and few multiply anything on a GPU.
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "parallel/runtime/error.h"

namespace weft::cuda {
namespace {

// Throws Error (request) if this machine lacks the library or the function.
void* cublaslt_symbol(const char* name) {
  static void* const library = [] {
    void* opened = dlopen(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR).c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (opened == nullptr) fail_request("device cuda cannot be used: {}", dlerror());
    return opened;
  }();
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) fail_request("device cuda cannot be used: {}", dlerror());
  return symbol;
}

}  // namespace
}  // namespace weft::cuda

// Defines a function of cublasLt.h by that of the library.
#define WEFT_CUBLASLT(result, name, parameters, arguments)                                              \
  result name parameters {                                                                              \
    static const auto function = reinterpret_cast<decltype(&name)>(weft::cuda::cublaslt_symbol(#name)); \
    return function arguments;                                                                          \
  }

extern "C" {
WEFT_CUBLASLT(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
WEFT_CUBLASLT(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
WEFT_CUBLASLT(std::size_t, cublasLtGetVersion, (), ())
WEFT_CUBLASLT(const char*, cublasLtGetStatusName, (cublasStatus_t status), (status))
WEFT_CUBLASLT(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatrixLayoutInit_internal,
              (cublasLtMatrixLayout_t layout, std::size_t size, cudaDataType type, std::uint64_t rows,
               std::uint64_t columns, std::int64_t stride),
              (layout, size, type, rows, columns, stride))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatmulDescCreate,
              (cublasLtMatmulDesc_t * description, cublasComputeType_t compute, cudaDataType_t scale),
              (description, compute, scale))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t description), (description))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatmulDescSetAttribute,
              (cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const void* value,
               std::size_t bytes),
              (description, attribute, value, bytes))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference), (preference))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
              (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
               std::size_t bytes),
              (preference, attribute, value, bytes))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
              (cublasLtHandle_t handle, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
               cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
               cublasLtMatmulPreference_t preference, int asked, cublasLtMatmulHeuristicResult_t* found, int* count),
              (handle, description, a, b, c, d, preference, asked, found, count))
WEFT_CUBLASLT(cublasStatus_t, cublasLtMatmul,
              (cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
               cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
               const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
               const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
               cudaStream_t stream),
              (handle, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
               workspace, workspace_bytes, stream))
}
