#include "trainer/optimizer/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft {
namespace {

constexpr double a = 3.4445, b = -4.7750, c = 2.0315;

}  // namespace

double newton_schulz_factor() {
  return std::pow(a, newton_schulz_steps);
}

std::int64_t newton_schulz_flops(std::int64_t rows, std::int64_t columns) {
  const std::int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  return newton_schulz_steps * (4 * small * small * large + 2 * small * small * small);
}

std::int64_t newton_schulz_bytes(std::int64_t rows, std::int64_t columns, DType dtype) {
  const std::int64_t small = std::min(rows, columns), matrices = dtype == DType::float32 ? 1 : 2;
  return size_of(DType::float64) + (matrices * rows * columns + 2 * small * small) * size_of(dtype);
}

NewtonSchulzSpace::NewtonSchulzSpace(MemoryLedger& ledger, std::int64_t rows, std::int64_t columns, DType dtype) {
  require(dtype == DType::float32 || dtype == DType::bfloat16, "the iteration is in float32 or bfloat16");
  const std::int64_t small = std::min(rows, columns);
  square_sum_ = ledger.allocate(Bucket::workspace, DType::float64, 1, 1);
  if (dtype != DType::float32) narrow_ = ledger.allocate(Bucket::workspace, dtype, rows, columns);
  next_ = ledger.allocate(Bucket::workspace, dtype, rows, columns);
  gram_ = ledger.allocate(Bucket::workspace, dtype, small, small);
  polynomial_ = ledger.allocate(Bucket::workspace, dtype, small, small);
}

ConstTensorView newton_schulz(Stream& stream, MatrixProducts& products, TensorView matrix, NewtonSchulzSpace& space) {
  require(matrix.dtype() == DType::float32, "a matrix comes in float32");
  require(matrix.rows() == space.next_.rows() && matrix.columns() == space.next_.columns(),
          "the space was taken for a matrix of this shape");
  fill(stream, space.square_sum_, 0.0f);
  square_sum(stream, matrix, space.square_sum_);
  divide_by_root(stream, space.square_sum_, matrix);
  TensorView z = matrix, next = space.next_;
  if (space.narrow_.allocated()) {
    z = space.narrow_;
    cast(stream, matrix, z);
  }

  const bool tall = matrix.rows() > matrix.columns();
  const TensorView gram = space.gram_, polynomial = space.polynomial_;
  double scale = 1.0;
  for (int step = 0; step < newton_schulz_steps; ++step) {
    // `polynomial` becomes B / a, from `gram` = Z Z^T = A / s^2.
    products.multiply(z, tall ? Transpose::yes : Transpose::no, z, tall ? Transpose::no : Transpose::yes, gram, false);
    products.multiply(gram, Transpose::no, gram, Transpose::no, polynomial, false);
    combine(stream, static_cast<float>(b / a * scale * scale), gram, static_cast<float>(c / a * std::pow(scale, 4)),
            polynomial);
    const ConstTensorView left = tall ? z : polynomial, right = tall ? polynomial : z;
    products.run({left, Transpose::no, right, Transpose::no, next, false, z});
    std::swap(z, next);
    scale *= a;
  }
  return z;
}

}  // namespace weft
