// The way cuBLASLt computes a product: its description, and the algorithm that the heuristics chose.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <source_location>
#include <string_view>
#include <utility>
#include <vector>

#include "layers/kernels/matrix_products.h"

namespace weft::cuda {

// Throws Error naming the expression if a call of cuBLAS failed.
void check(cublasStatus_t status, std::string_view expression,
           std::source_location place = std::source_location::current());
#define WEFT_CUBLAS_CHECK(expression) ::weft::cuda::check((expression), #expression)

// Throws Error if the operands do not fit together.
ProductCall checked_shape(const Product& product);
// The shape with its number of tokens rounded up, the key of plans.
ProductCall rounded_tokens(ProductCall shape);

// A product of row-major matrices is computed by cuBLASLt as a column-major product: c^T = op(b)^T op(a)^T. The
// library's first operand is b, its m the columns of c and its n the rows of c. It would assume addresses aligned to
// 256 bytes; no kernel requires more than 16.
//
// Not thread-safe. Plans are kept by shape with rounded numbers of tokens. Routed experts have a different number at
// every call, and the best algorithm changes slowly with it.
class ProductPlans {
 public:
  // Each product is given `workspace_bytes`, 256-byte aligned, which serve one stream at a time.
  explicit ProductPlans(std::int64_t workspace_bytes);
  ~ProductPlans();
  ProductPlans(const ProductPlans&) = delete;
  ProductPlans& operator=(const ProductPlans&) = delete;

  // Queues the product, which has shape `shape`, on `stream`. `workspace` is on the device.
  void run(cudaStream_t stream, const ProductCall& shape, const Product& product, void* workspace);

  // The algorithms of the heuristics, best first: at least one, at most `most`.
  std::vector<cublasLtMatmulAlgo_t> listed(const ProductCall& shape, int most);
  // run() with a given algorithm.
  cublasStatus_t multiply(cudaStream_t stream, const ProductCall& shape, const Product& product, void* workspace,
                          const cublasLtMatmulAlgo_t& algorithm);
  // From now on products of this shape use the algorithm. So do shapes that differ only in the number of tokens, by a
  // factor of at most 2, unless another kept shape is nearer.
  void keep(const ProductCall& rounded, const cublasLtMatmulAlgo_t& algorithm);

 private:
  struct Kind {  // of products that share a description
    bool transpose_a = false, transpose_b = false, float8 = false, forward = false;
    ScaledBlock scaled_a = ScaledBlock::all, scaled_b = ScaledBlock::all;
    auto operator<=>(const Kind&) const = default;
  };
  const cublasLtMatmulAlgo_t* kept_near(const ProductCall& rounded) const;
  const cublasLtMatmulAlgo_t& algorithm(const ProductCall& shape);
  cublasLtMatmulDesc_t description(const ProductCall& shape);

  std::size_t workspace_bytes_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<ProductCall, cublasLtMatmulAlgo_t> kept_;        // by the rounded shape
  std::map<ProductCall, cublasLtMatmulAlgo_t> algorithms_;  // by the rounded shape, all in use
  std::map<ProductCall, cublasLtMatmulAlgo_t> for_exact_;   // by exact shape, if the rounded shape's is refused
  std::map<Kind, cublasLtMatmulDesc_t> descriptions_;
};

}  // namespace weft::cuda
