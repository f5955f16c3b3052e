// The CPU's kernels, and the functions that they share: workspace, products, sums over a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "layers/kernels/elementary.h"
#include "layers/kernels/kernels.h"
#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/dtype.h"

namespace weft::cpu {

extern const AttentionKernels attention_kernels;
WEFT_FOR_LAYER_KERNELS(WEFT_DECLARE_KERNEL)

// These allocate the workspace of the functions above, and compute nothing.
void take_attention_forward_workspace(KernelContext& context, const HeadShape& heads, QueryRuns runs, DType dtype);
void take_attention_backward_workspace(KernelContext& context, const HeadShape& heads, QueryRuns runs, DType dtype);
Tensor sort_workspace(KernelContext& context, std::int64_t experts);
Tensor mixing_workspace(KernelContext& context, const StateSpaceShape& shape, bool backward);
Tensor scan_workspace(KernelContext& context, const StateSpaceShape& shape, bool backward);

// Numbers of 8 bits back in bfloat16, in which the CPU multiplies them (float8.cpp): the elements times the scales of
// their blocks, which is exact. The result lies in `storage`.
ConstTensorView from_float8(ConstTensorView elements, const FactorScales& scales, std::vector<bfloat16>& storage);

}  // namespace weft::cpu

namespace weft {

// Parts of oneDNN that the CPU's kernels use besides the public MatrixProducts (matrix_products.cpp).
//
// A row-major matrix inside a larger one: `stride` elements from one row to the next.
template <typename T>
struct StridedMatrix {
  const T* data = nullptr;
  std::int64_t stride = 0;
};

// c = op(a) op(b), added to c if `accumulate`; c is m x n and dense. Sizes are positive.
void strided_product(std::int64_t m, std::int64_t n, std::int64_t k, StridedMatrix<float> a, Transpose transpose_a,
                     StridedMatrix<float> b, Transpose transpose_b, float* c, bool accumulate);

// Whether the processor has bfloat16 products. Without them, products of bfloat16 are computed in float32.
bool has_bfloat16_products();
std::unique_ptr<MatrixProducts> make_library_products(bool bfloat16_products);

// Sums over a row in 16 interleaved partial sums, folded in halves. Unlike `omp simd reduction`, the order of additions
// is the same for every vector width and alignment. So a sum depends on its terms alone; the cost is the same.
//
// The sum of term(i) for i in [0, count). `term` must be an always-inlined lambda; otherwise it is compiled for the
// x86-64-v3 floor (parallel/runtime/dtype.h).
template <typename Term>
WEFT_INLINE float lane_sum(std::int64_t count, Term term) {
  constexpr int lane_count = 16;
  float lanes[lane_count] = {};
  std::int64_t i = 0;
  for (; i + lane_count <= count; i += lane_count) {
#pragma omp simd
    for (int lane = 0; lane < lane_count; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
  for (int width = lane_count / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// The largest number of a row, ignoring NaN, folded in the same way: `omp simd reduction` would join its lanes one by
// one. -infinity without numbers.
WEFT_INLINE float lane_maximum(const float* row, std::int64_t count) {
  constexpr int lane_count = 16;
  float lanes[lane_count];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + lane_count <= count; i += lane_count) {
#pragma omp simd
    for (int lane = 0; lane < lane_count; ++lane)
      lanes[lane] = row[i + lane] > lanes[lane] ? row[i + lane] : lanes[lane];
  }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] = row[i] > lanes[lane] ? row[i] : lanes[lane];
  for (int width = lane_count / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] = std::max(lanes[lane], lanes[lane + width]);
  }
  return lanes[0];
}

}  // namespace weft
