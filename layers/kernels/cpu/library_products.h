// Parts of oneDNN that the CPU kernels use besides the public MatrixProducts.
#pragma once

#include <memory>

#include "layers/kernels/matrix_products.h"

namespace weft {

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

}  // namespace weft
