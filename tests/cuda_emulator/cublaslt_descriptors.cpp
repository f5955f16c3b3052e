// Handles and descriptors of cuBLASLt.
#include "cublaslt_descriptors.h"

#include <cstring>

using namespace weft::cuda_emulator;

namespace {

template <typename T>
cublasStatus_t assign(T& field, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

// Allocates the opaque struct and lets the Init function of the same name fill it.
template <typename Opaque, typename Initialize>
cublasStatus_t create(Opaque** result, Initialize initialize) {
  *result = new Opaque;
  return initialize(*result, sizeof(Opaque));
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(known_descriptor));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion() {
  return CUDART_VERSION;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the GPU program failed to execute";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
    default:
      return "an internal operation failed";
  }
}
const char* cublasGetStatusName(cublasStatus_t status) {
  return cublasLtGetStatusName(status);
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return cublasLtGetStatusString(status);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t leading) {
  if (size < sizeof(MatrixLayout)) return CUBLAS_STATUS_ALLOC_FAILED;
  auto* inner = reinterpret_cast<MatrixLayout*>(layout);
  *inner = {type, CUBLASLT_ORDER_COL, 1, known_descriptor, rows, columns, leading, 0};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  return create(layout, [&](cublasLtMatrixLayout_t made, size_t size) {
    return cublasLtMatrixLayoutInit_internal(made, size, type, rows, columns, leading);
  });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t opaque, cublasLtMatrixLayoutAttribute_t name,
                                                const void* value, size_t bytes) {
  MatrixLayout* layout = inside(opaque);
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (name) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return assign(layout->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return assign(layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return assign(layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return assign(layout->columns, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return assign(layout->leading, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return assign(layout->batch_count, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return assign(layout->batch_stride, value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, size_t size,
                                               cublasComputeType_t compute_type, cudaDataType_t scale_type) {
  if (size < sizeof(MatmulDescription)) return CUBLAS_STATUS_ALLOC_FAILED;
  auto* inner = reinterpret_cast<MatmulDescription*>(description);
  *inner = {compute_type,
            scale_type,
            CUBLASLT_POINTER_MODE_HOST,
            known_descriptor,
            CUBLAS_OP_N,
            CUBLAS_OP_N,
            CUBLAS_OP_N,
            CUBLASLT_EPILOGUE_DEFAULT,
            0,
            {},
            nullptr,
            nullptr,
            CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
            CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
            0};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  return create(description, [&](cublasLtMatmulDesc_t made, size_t size) {
    return cublasLtMatmulDescInit_internal(made, size, compute_type, scale_type);
  });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t bytes) {
  MatmulDescription* description = inside(opaque);
  if (description == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (name) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return assign(description->compute_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return assign(description->scale_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return assign(description->pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(description->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(description->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return assign(description->transpose_c, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return assign(description->fast_accumulation, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return assign(description->scale_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return assign(description->scale_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return assign(description->scale_mode_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return assign(description->scale_mode_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return CUBLAS_STATUS_SUCCESS;  // changes the time alone
    default:
      // Accepted here, as by the real library; the product is refused.
      description->unsupported = 1;
      return CUBLAS_STATUS_SUCCESS;
  }
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t size) {
  if (size < sizeof(MatmulPreference)) return CUBLAS_STATUS_ALLOC_FAILED;
  *reinterpret_cast<MatmulPreference*>(preference) = {known_descriptor, 0, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, cublasLtMatmulPreferenceInit_internal);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void* value,
                                                    size_t bytes) {
  MatmulPreference* preference = inside(opaque);
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return assign(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return assign(preference->alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return assign(preference->alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return assign(preference->alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return assign(preference->alignment[3], value, bytes);
    default:
      return CUBLAS_STATUS_SUCCESS;  // hints for the choice of an algorithm, of which there is one
  }
}

}  // extern "C"
