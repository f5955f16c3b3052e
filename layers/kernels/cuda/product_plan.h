// How cuBLASLt computes a product: its description and the algorithm its heuristics chose.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <source_location>
#include <string_view>
#include <utility>
#include <vector>

#include "layers/kernels/matrix_products.h"
#include "layers/kernels/product_workspace.h"

namespace weft::cuda {

// Throws Error naming the expression when a call of cuBLAS failed.
void check(cublasStatus_t status, std::string_view expression,
           std::source_location place = std::source_location::current());
#define WEFT_CUBLAS_CHECK(expression) ::weft::cuda::check((expression), #expression)

// A product of row-major matrices as the column-major one that cuBLASLt computes: c^T = op(b)^T op(a)^T, so its first
// operand is b, its m is the columns of c and its n the rows.
struct ProductShape {
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool transpose_a = false, transpose_b = false;
  DType input = DType::float32, output = DType::float32;
  bool accumulate = false;
  // Bytes of which the addresses of all three are multiples: a power of two, at most 16, beyond which no kernel asks
  // more. The library would assume 256.
  std::uint32_t alignment = 16;

  auto operator<=>(const ProductShape&) const = default;
};
// Throws Error when the operands do not fit together.
ProductShape shape_of(const Product& product);
// With its number of tokens rounded up, by which plans are kept.
ProductShape rounded_tokens(ProductShape shape);

// Not thread-safe. Plans are kept by shape, with numbers of tokens rounded up: routed experts bring another number at
// every call, and which algorithm is best changes slowly with it.
class ProductPlans {
 public:
  ProductPlans();
  ~ProductPlans();
  ProductPlans(const ProductPlans&) = delete;
  ProductPlans& operator=(const ProductPlans&) = delete;

  // Queues the product, of shape `shape`, on `stream`. `workspace` (product_workspace_bytes, 256-byte aligned) serves
  // one stream at a time.
  void run(cudaStream_t stream, const ProductShape& shape, const Product& product, void* workspace);

  // What the heuristics list for it, best first: at most so many, and at least one.
  std::vector<cublasLtMatmulAlgo_t> listed(const ProductShape& shape, int most);
  // run() by an algorithm that is given.
  cublasStatus_t multiply(cudaStream_t stream, const ProductShape& shape, const Product& product, void* workspace,
                          const cublasLtMatmulAlgo_t& algorithm);
  // From here on for this shape, and for those that differ from it in no more than half or twice the tokens and have
  // none of their own.
  void keep(const ProductShape& rounded, const cublasLtMatmulAlgo_t& algorithm);

 private:
  struct Layouts;
  const cublasLtMatmulAlgo_t* kept_near(const ProductShape& rounded) const;
  const cublasLtMatmulAlgo_t& algorithm(const ProductShape& shape);
  cublasLtMatmulDesc_t description(const ProductShape& shape);

  cublasLtHandle_t handle_ = nullptr;
  std::map<ProductShape, cublasLtMatmulAlgo_t> kept_;        // by the rounded shape
  std::map<ProductShape, cublasLtMatmulAlgo_t> algorithms_;  // the same, of all in use
  std::map<ProductShape, cublasLtMatmulAlgo_t> for_exact_;   // by exact ones that the rounded shape's algorithm refuses
  std::map<std::pair<bool, bool>, cublasLtMatmulDesc_t> descriptions_;  // by transpositions
};

}  // namespace weft::cuda
