#include "layers/kernels/cuda/product_plan.h"

#include <cmath>

#include "parallel/runtime/error.h"

namespace weft::cuda {
namespace {

cudaDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return CUDA_R_32F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    case DType::float16:
      return CUDA_R_16F;
    case DType::float8_e4m3:
      return CUDA_R_8F_E4M3;
    case DType::float8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      fail("a matrix product does not take {}", name_of(dtype));
  }
}

cublasLtMatmulMatrixScale_t scale_mode(ScaledBlock each) {
  switch (each) {
    case ScaledBlock::all:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case ScaledBlock::row:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaledBlock::square:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  fail("a factor is scaled by no known block");
}
// `first` and `second` as the library counts operands.
void set_scales(cublasLtMatmulDesc_t description, const void* first, const void* second) {
  WEFT_CUBLAS_CHECK(
      cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &first, sizeof(first)));
  WEFT_CUBLAS_CHECK(
      cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &second, sizeof(second)));
}
bool in_float8(const ProductCall& shape) {
  return size_of(shape.input_a) == 1;
}
// Tokens are counted by the inner size in weight gradients, and by the rows in other products. Factors of 8 bits are
// never transposed here; of their products only weight gradients are float32.
std::int64_t& tokens_of(ProductCall& shape) {
  const bool weight_gradient = shape.transpose_a || (in_float8(shape) && shape.output == DType::float32);
  return weight_gradient ? shape.inner : shape.rows;
}

// A row-major rows x columns matrix: for the library a column-major columns x rows matrix.
struct Layout {
  Layout(DType dtype, std::int64_t rows, std::int64_t columns) {
    WEFT_CUBLAS_CHECK(cublasLtMatrixLayoutInit(&value, library_type(dtype), static_cast<std::uint64_t>(columns),
                                               static_cast<std::uint64_t>(rows), columns));
  }
  cublasLtMatrixLayoutOpaque_t value;
};
struct Layouts {
  explicit Layouts(const ProductCall& s)
      : a(s.input_a, s.transpose_a ? s.inner : s.rows, s.transpose_a ? s.rows : s.inner),
        b(s.input_b, s.transpose_b ? s.columns : s.inner, s.transpose_b ? s.inner : s.columns),
        c(s.output, s.rows, s.columns) {}
  Layout a, b, c;
};

}  // namespace

// Token counts are rows of dense row-major matrices and never a leading dimension, so an algorithm chosen for a rounded
// count has the same alignment.
ProductCall rounded_tokens(ProductCall shape) {
  constexpr std::int64_t unit = 64;
  std::int64_t& tokens = tokens_of(shape);
  tokens = (tokens + unit - 1) / unit * unit;
  return shape;
}

void check(cublasStatus_t status, std::string_view expression, std::source_location place) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("{} failed at {}:{}: {} ({})", expression, place.file_name(), place.line(), cublasLtGetStatusString(status),
       cublasLtGetStatusName(status));
}

ProductCall checked_shape(const Product& product) {
  const auto& [a, transpose_a, b, transpose_b, c, accumulate, addend, gradient, scales_a, scales_b] = product;
  const ProductCall shape = shape_of(product);
  require((shape.transpose_a ? a.columns() : a.rows()) == shape.rows &&
              (shape.transpose_b ? b.rows() : b.columns()) == shape.columns &&
              (shape.transpose_b ? b.columns() : b.rows()) == shape.inner,
          "the operands of a product fit together");
  require(addend.empty() || (!accumulate && addend.rows() == c.rows() && addend.columns() == c.columns() &&
                             addend.dtype() == c.dtype()),
          "what a product is added to is like its result");
  require(a.dtype() == b.dtype() || (size_of(a.dtype()) == 1 && size_of(b.dtype()) == 1),
          "both factors of a product have one dtype, or 8 bits each");
  return shape;
}

ProductPlans::ProductPlans(std::int64_t workspace_bytes) : workspace_bytes_(static_cast<std::size_t>(workspace_bytes)) {
  WEFT_CUBLAS_CHECK(cublasLtCreate(&handle_));
}

ProductPlans::~ProductPlans() {
  for (auto& [kind, description] : descriptions_) cublasLtMatmulDescDestroy(description);
  cublasLtDestroy(handle_);
}

cublasLtMatmulDesc_t ProductPlans::description(const ProductCall& shape) {
  const bool float8 = in_float8(shape), in_blocks = shape.scaled_a != ScaledBlock::all;
  const bool forward = float8 && !in_blocks && shape.input_a == shape.input_b;
  cublasLtMatmulDesc_t& description =
      descriptions_[{shape.transpose_a, shape.transpose_b, float8, forward, shape.scaled_a, shape.scaled_b}];
  if (description != nullptr) return description;
  WEFT_CUBLAS_CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  // The library's first operand is our second operand.
  const cublasOperation_t first = shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  WEFT_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
  WEFT_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
  if (in_blocks) {
    const cublasLtMatmulMatrixScale_t of_first = scale_mode(shape.scaled_b), of_second = scale_mode(shape.scaled_a);
    WEFT_CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_first, sizeof(of_first)));
    WEFT_CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_second, sizeof(of_second)));
    // The heuristics refuse blocks without addresses of scales. multiply() sets those of the product.
    const void* const some = reinterpret_cast<const void*>(std::uintptr_t{256});
    set_scales(description, some, some);
  }
  if (forward) {
    // Hopper's tensor cores add up products of 8 bits in some 14 bits. Sums of gradients leave them for float32 every
    // 128 terms, which costs time; sums of a forward need not. Sums of scaled blocks leave them anyway.
    const std::int8_t fast = 1;
    WEFT_CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
  }
  return description;
}

std::vector<cublasLtMatmulAlgo_t> ProductPlans::listed(const ProductCall& shape, int most) {
  Layouts layouts(shape);
  cublasLtMatmulPreference_t preference = nullptr;
  WEFT_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  WEFT_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &workspace_bytes_, sizeof(workspace_bytes_)));
  for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    WEFT_CUBLAS_CHECK(
        cublasLtMatmulPreferenceSetAttribute(preference, which, &shape.alignment, sizeof(shape.alignment)));
  }
  // Parts of a sum are added up in float32. Otherwise a result of 16 bits may be rounded once for each part.
  const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  WEFT_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                         &schemes, sizeof(schemes)));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, description(shape), &layouts.b.value, &layouts.a.value, &layouts.c.value,
                                     &layouts.c.value, preference, most, results.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  if (algorithms.empty()) {
    fail("cuBLASLt has no algorithm for a product of {} x {} by {} x {}, {} to {}: {}", shape.rows, shape.inner,
         shape.inner, shape.columns, name_of(shape.input_a), name_of(shape.output), cublasLtGetStatusName(status));
  }
  return algorithms;
}

void ProductPlans::keep(const ProductCall& rounded, const cublasLtMatmulAlgo_t& algorithm) {
  kept_[rounded] = algorithm;
  algorithms_.clear();
  for_exact_.clear();
}

const cublasLtMatmulAlgo_t* ProductPlans::kept_near(const ProductCall& rounded) const {
  ProductCall wanted = rounded;
  const std::int64_t tokens = tokens_of(wanted);
  const cublasLtMatmulAlgo_t* nearest = nullptr;
  std::int64_t distance = tokens + 1;
  for (const auto& [shape, algorithm] : kept_) {
    ProductCall other = shape;
    const std::int64_t others = tokens_of(other);
    tokens_of(other) = tokens;
    if (other != rounded || others > 2 * tokens || tokens > 2 * others) continue;
    if (std::abs(others - tokens) >= distance) continue;
    distance = std::abs(others - tokens);
    nearest = &algorithm;
  }
  return nearest;
}

const cublasLtMatmulAlgo_t& ProductPlans::algorithm(const ProductCall& shape) {
  if (const auto exact = for_exact_.find(shape); exact != for_exact_.end()) return exact->second;
  const ProductCall key = rounded_tokens(shape);
  if (const auto found = algorithms_.find(key); found != algorithms_.end()) return found->second;
  const cublasLtMatmulAlgo_t* kept = kept_near(key);
  return algorithms_.emplace(key, kept != nullptr ? *kept : listed(key, 1).front()).first->second;
}

cublasStatus_t ProductPlans::multiply(cudaStream_t stream, const ProductCall& shape, const Product& product,
                                      void* workspace, const cublasLtMatmulAlgo_t& algorithm) {
  const float one = 1.0f, beta = shape.adds ? 1.0f : 0.0f;
  Layouts layouts(shape);
  const void* onto = product.addend.empty() ? product.c.data() : product.addend.data();
  cublasLtMatmulDesc_t how = description(shape);
  if (in_float8(shape)) set_scales(how, product.scales_b.values.data(), product.scales_a.values.data());
  return cublasLtMatmul(handle_, how, &one, product.b.data(), &layouts.b.value, product.a.data(), &layouts.a.value,
                        &beta, onto, &layouts.c.value, product.c.data(), &layouts.c.value, &algorithm, workspace,
                        workspace_bytes_, stream);
}

void ProductPlans::run(cudaStream_t stream, const ProductCall& shape, const Product& product, void* workspace) {
  const cublasStatus_t status = multiply(stream, shape, product, workspace, algorithm(shape));
  // An algorithm may refuse the exact size. Another is then chosen for that size, once.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    const cublasLtMatmulAlgo_t& exact = for_exact_.insert_or_assign(shape, listed(shape, 1).front()).first->second;
    WEFT_CUBLAS_CHECK(multiply(stream, shape, product, workspace, exact));
    return;
  }
  WEFT_CUBLAS_CHECK(status);
}

}  // namespace weft::cuda
