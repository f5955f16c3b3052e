// Products of cuBLASLt: D = alpha * op(A) op(B) + beta * C in float32, on the emulated stream. What the real library
// refuses (layouts that do not fit, types that do not go together, misaligned pointers) is refused with its status.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cublaslt_descriptors.h"
#include "machine.h"

using namespace weft::cuda_emulator;

namespace {

// The algorithm's opaque words: that it is ours, the workspace it needs, the alignment it relies on, and what divides
// the sizes that it takes.
constexpr std::uint64_t algorithm_mark = 0x57454654;

struct Problem {
  MatmulDescription description;
  MatrixLayout a, b, c, d;
  std::uint64_t m = 0, n = 0, k = 0;
};

bool of_8_bits(std::int32_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
std::size_t element_bytes(std::int32_t type) {
  return type == CUDA_R_32F ? 4 : of_8_bits(type) ? 1 : 2;
}

// The scales of A [m, k], or of B [n, k], in the layouts that the library documents for Hopper ("128-element 1D and
// 128x128 2D block scaling for FP8").
struct Scales {
  const float* values;
  std::int32_t mode;
  std::uint64_t rows, inner;

  bool whole() const { return mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F; }
  bool in_squares() const { return mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F; }
  bool known() const { return whole() || in_squares() || mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F; }
  static std::uint64_t blocks(std::uint64_t size) { return (size + 127) / 128; }
  std::uint64_t stride() const { return in_squares() ? (blocks(inner) + 3) / 4 * 4 : rows; }
  std::size_t count() const { return whole() ? 1 : stride() * (in_squares() ? blocks(rows) : blocks(inner)); }
  float at(std::uint64_t row, std::uint64_t k) const {
    if (whole()) return values == nullptr ? 1.0f : *values;
    return values[in_squares() ? row / 128 * stride() + k / 128 : k / 128 * stride() + row];
  }
};
Scales scales_of_a(const Problem& problem) {
  return {problem.description.scale_a, problem.description.scale_mode_a, problem.m, problem.k};
}
Scales scales_of_b(const Problem& problem) {
  return {problem.description.scale_b, problem.description.scale_mode_b, problem.n, problem.k};
}

// Both factors have one scale, or both have blocks, not both squares: then m and n are multiples of 4.
bool supported_scales(const Problem& problem) {
  const Scales a = scales_of_a(problem), b = scales_of_b(problem);
  if (!a.known() || !b.known() || a.whole() != b.whole()) return false;
  return a.whole() || (!(a.in_squares() && b.in_squares()) && problem.m % 4 == 0 && problem.n % 4 == 0 &&
                       problem.description.fast_accumulation == 0);
}

// Hopper's: A transposed, B not, rows of a multiple of 16 bytes, not E5M2 with itself; results bfloat16, float16 or
// float32.
bool supported_in_8_bits(const MatmulDescription& how, const MatrixLayout& a, const MatrixLayout& b,
                         const MatrixLayout& d) {
  return of_8_bits(a.type) && of_8_bits(b.type) && (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) &&
         how.transpose_a == CUBLAS_OP_T && how.transpose_b == CUBLAS_OP_N && a.leading % 16 == 0 &&
         b.leading % 16 == 0 && d.leading * element_bytes(d.type) % 16 == 0 && !of_8_bits(d.type);
}

bool plausible(const MatrixLayout& layout) {
  if (layout.type != CUDA_R_32F && layout.type != CUDA_R_16BF && layout.type != CUDA_R_16F && !of_8_bits(layout.type))
    return false;
  if (layout.order != CUBLASLT_ORDER_COL && layout.order != CUBLASLT_ORDER_ROW) return false;
  const std::uint64_t shortest = layout.order == CUBLASLT_ORDER_COL ? layout.rows : layout.columns;
  return layout.rows > 0 && layout.columns > 0 && layout.batch_count >= 1 &&
         layout.leading >= static_cast<std::int64_t>(shortest);
}

cublasStatus_t describe(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, Problem& problem) {
  if (!inside(description) || !inside(a) || !inside(b) || !inside(c) || !inside(d)) return CUBLAS_STATUS_INVALID_VALUE;
  problem = {*inside(description), *inside(a), *inside(b), *inside(c), *inside(d)};
  const MatmulDescription& how = problem.description;
  for (const MatrixLayout* layout : {&problem.a, &problem.b, &problem.c, &problem.d}) {
    if (!plausible(*layout)) return CUBLAS_STATUS_INVALID_VALUE;
    if (layout->batch_count != problem.d.batch_count) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (how.unsupported || how.epilogue != CUBLASLT_EPILOGUE_DEFAULT || how.transpose_c != CUBLAS_OP_N ||
      how.pointer_mode != CUBLASLT_POINTER_MODE_HOST || how.scale_type != CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool tensor_float = how.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (how.compute_type != CUBLAS_COMPUTE_32F && how.compute_type != CUBLAS_COMPUTE_32F_PEDANTIC && !tensor_float)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  // float32 -> float32, a 16-bit type -> itself or float32; C as D.
  const bool in_8_bits = of_8_bits(problem.a.type) || of_8_bits(problem.b.type);
  if (problem.c.type != problem.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (in_8_bits) {
    if (!supported_in_8_bits(how, problem.a, problem.b, problem.d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  } else if (problem.a.type != problem.b.type || how.scale_a != nullptr || how.scale_b != nullptr ||
             !scales_of_a(problem).whole() || !scales_of_b(problem).whole() || how.fast_accumulation != 0) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!in_8_bits && problem.d.type != CUDA_R_32F && problem.d.type != problem.a.type)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool turned_a = how.transpose_a != CUBLAS_OP_N, turned_b = how.transpose_b != CUBLAS_OP_N;
  problem.m = turned_a ? problem.a.columns : problem.a.rows;
  problem.k = turned_a ? problem.a.rows : problem.a.columns;
  problem.n = turned_b ? problem.b.rows : problem.b.columns;
  const std::uint64_t other_k = turned_b ? problem.b.columns : problem.b.rows;
  const bool fits = other_k == problem.k && problem.d.rows == problem.m && problem.d.columns == problem.n &&
                    problem.c.rows == problem.m && problem.c.columns == problem.n;
  if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
  return in_8_bits && !supported_scales(problem) ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

std::int64_t offset_of(const MatrixLayout& layout, std::uint64_t row, std::uint64_t column) {
  const auto i = static_cast<std::int64_t>(row), j = static_cast<std::int64_t>(column);
  return layout.order == CUBLASLT_ORDER_COL ? i + j * layout.leading : i * layout.leading + j;
}

float load(const MatrixLayout& layout, const void* data, std::int64_t offset) {
  if (layout.type == CUDA_R_32F) return static_cast<const float*>(data)[offset];
  if (layout.type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[offset]);
  if (of_8_bits(layout.type)) {
    const auto format = layout.type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2;
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<const std::uint8_t*>(data)[offset], format)));
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[offset]);
}

void store(const MatrixLayout& layout, void* data, std::int64_t offset, float value) {
  if (layout.type == CUDA_R_32F) {
    static_cast<float*>(data)[offset] = value;
  } else if (layout.type == CUDA_R_16F) {
    static_cast<__half*>(data)[offset] = __float2half(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[offset] = __float2bfloat16(value);
  }
}

// From the first to one past the last element, all batches.
std::size_t extent_bytes(const MatrixLayout& layout) {
  const std::int64_t last = offset_of(layout, layout.rows - 1, layout.columns - 1);
  return static_cast<std::size_t>(last + 1 + (layout.batch_count - 1) * layout.batch_stride) *
         element_bytes(layout.type);
}

void multiply(const Problem& problem, float alpha, const void* a, const void* b, float beta, const void* c, void* d) {
  const bool turned_a = problem.description.transpose_a != CUBLAS_OP_N;
  const bool turned_b = problem.description.transpose_b != CUBLAS_OP_N;
  std::vector<float> left(problem.m * problem.k), column(problem.m);
  // Scales are read when the product runs.
  const Scales scales_a = scales_of_a(problem), scales_b = scales_of_b(problem);
  for (std::int32_t batch = 0; batch < problem.d.batch_count; ++batch) {
    // op(A) as float32, its columns together, so that the inner loop below is a sum of columns.
    for (std::uint64_t k = 0; k < problem.k; ++k) {
      for (std::uint64_t row = 0; row < problem.m; ++row) {
        const std::int64_t at = turned_a ? offset_of(problem.a, k, row) : offset_of(problem.a, row, k);
        left[k * problem.m + row] = scales_a.at(row, k) * load(problem.a, a, at + batch * problem.a.batch_stride);
      }
    }
    for (std::uint64_t n = 0; n < problem.n; ++n) {
      std::fill(column.begin(), column.end(), 0.0f);
      for (std::uint64_t k = 0; k < problem.k; ++k) {
        const std::int64_t at = turned_b ? offset_of(problem.b, n, k) : offset_of(problem.b, k, n);
        const float factor = scales_b.at(n, k) * load(problem.b, b, at + batch * problem.b.batch_stride);
        const float* source = left.data() + k * problem.m;
        for (std::uint64_t row = 0; row < problem.m; ++row) column[row] += source[row] * factor;
      }
      for (std::uint64_t row = 0; row < problem.m; ++row) {
        float value = alpha * column[row];
        // With beta 0 C is not read: it may hold NaN.
        if (beta != 0.0f)
          value += beta * load(problem.c, c, offset_of(problem.c, row, n) + batch * problem.c.batch_stride);
        store(problem.d, d, offset_of(problem.d, row, n) + batch * problem.d.batch_stride, value);
      }
    }
  }
}

bool aligned(const void* address, std::uint64_t alignment) {
  return alignment == 0 || reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

}  // namespace

extern "C" cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                         cublasLtMatmulPreference_t opaque, int requested,
                                                         cublasLtMatmulHeuristicResult_t results[], int* returned) {
  *returned = 0;
  Machine::instance().count_product_search();
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const MatmulPreference* preference = inside(opaque);
  if (preference == nullptr || requested <= 0 || results == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Problem problem;
  if (const cublasStatus_t status = describe(description, a, b, c, d, problem); status != CUBLAS_STATUS_SUCCESS)
    return status;
  // As much workspace as is allowed, up to a size seen in practice, so that its use is exercised; others take less. The
  // last one says that it would do, and then refuses what is not a multiple of 8.
  const std::uint64_t most = std::min<std::uint64_t>(preference->workspace_bytes, 4u << 20);
  for (int i = 0; i < std::min(requested, 3); ++i) {
    results[i] = {};
    results[i].workspaceSize = most >> (4 * i);
    results[i].state = CUBLAS_STATUS_SUCCESS;
    results[i].wavesCount = 1.0f;
    auto& words = results[i].algo.data;
    words[0] = algorithm_mark;
    words[1] = results[i].workspaceSize;
    std::copy(std::begin(preference->alignment), std::end(preference->alignment), words + 2);
    words[6] = i == 2 ? 8 : 1;
    *returned = i + 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                                         const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                         cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                         cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                         const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                                         std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  Problem problem;
  if (const cublasStatus_t status = describe(description, a_layout, b_layout, c_layout, d_layout, problem);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  // Scalars are read now (pointer mode host).
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  Machine& machine = Machine::instance();
  const auto allocated = [&](const void* data, const MatrixLayout& layout) {
    return aligned(data, element_bytes(layout.type)) && machine.is_allocated(data, extent_bytes(layout));
  };
  if (!allocated(a, problem.a) || !allocated(b, problem.b) || !allocated(d, problem.d))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (keep != 0.0f && !allocated(c, problem.c)) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Scales& scales : {scales_of_a(problem), scales_of_b(problem)}) {
    if (scales.values == nullptr && scales.whole()) continue;
    if (!machine.is_allocated(scales.values, scales.count() * sizeof(float))) return CUBLAS_STATUS_INVALID_VALUE;
    if (!scales.whole() && !aligned(scales.values, 16)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (of_8_bits(problem.a.type) && (!aligned(a, 16) || !aligned(b, 16) || !aligned(d, 16)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  // In place needs the same layout, as an element is read where it is written.
  if (c == d && std::memcmp(&problem.c, &problem.d, sizeof problem.c) != 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes > 0 && (!aligned(workspace, 256) || !machine.is_allocated(workspace, workspace_bytes)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm != nullptr) {
    const auto& words = algorithm->data;
    if (words[0] != algorithm_mark) return CUBLAS_STATUS_INVALID_VALUE;
    // The kernel was chosen for this alignment and this workspace.
    if (workspace_bytes < words[1]) return CUBLAS_STATUS_INVALID_VALUE;
    if (!aligned(a, words[2]) || !aligned(b, words[3]) || !aligned(c, words[4]) || !aligned(d, words[5]))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (problem.m % words[6] != 0 || problem.n % words[6] != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto run = [=] {
    // Scratch space, whose contents nobody may rely on; and two products may not share it at the same time.
    if (workspace_bytes > 0) std::memset(workspace, 0xFF, std::min<std::size_t>(workspace_bytes, 1u << 16));
    multiply(problem, scale, a, b, keep, c, d);
  };
  const cudaError_t error = machine.enqueue(stream, {"cublasLtMatmul", {}, run});
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
