// Matrix products of row-major tensors through a tuned library. One object per rank, called by the rank's thread only.
// It keeps prepared products by shape and queues its work on the stream it was made for.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "parallel/runtime/kernel_log.h"
#include "parallel/runtime/tensor.h"

namespace weft {

enum class Transpose : std::uint8_t { no, yes };
// The factor of a product that is a gradient. It decides the format if factors are rounded to 8 bits (float8.h).
enum class GradientFactor : std::uint8_t { none, a, b };

// The scales of a factor of 8 bits, float32 in device memory. An element stands for itself times the scale of its
// block, a power of two or NaN. For a factor [rows, inner], with L = inner / 128 rounded up:
//   all     [1, 1]
//   row     [L, rows]: scale (l, r) of the elements [128 l, 128 l + 128) of row r
//   square  [rows / 128 rounded up, L rounded up to a multiple of 4]: scale (s, l) of those elements of rows
//           [128 s, 128 s + 128)
// These are the layouts of cuBLASLt (CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, _VEC128_32F and _BLK128x128_32F).
struct FactorScales {
  ConstTensorView values = {};
  ScaledBlock each = ScaledBlock::all;
};

// c = op(a) op(b), which is m x n, m x k and k x n. It is added to c if `accumulate`, or to `addend` [m, n] of c's
// dtype if that is not empty. c and addend then do not overlap, and the sum is rounded once or twice.
//
// dtypes: all float32, or a and b bfloat16 or float16 (both the same) with c like them or float32. Or a and b have 8
// bits, each of its own format, with c bfloat16 or float32. Sums are kept in float32. Any size may be zero: an empty
// sum is zero.
//
// Factors of 8 bits have the inner size as their columns (a not transposed, b transposed), a multiple of 16, and
// scales. Both are scaled by `all`, or neither is; then rows and columns of c are multiples of 4, and not both are
// `square`.
struct Product {
  ConstTensorView a;
  Transpose transpose_a = Transpose::no;
  ConstTensorView b;
  Transpose transpose_b = Transpose::no;
  TensorView c;
  bool accumulate = false;
  ConstTensorView addend = {};
  GradientFactor gradient = GradientFactor::none;
  FactorScales scales_a = {}, scales_b = {};
};

// The shape of a product. It does not check that the operands fit together.
inline ProductCall shape_of(const Product& product) {
  const auto& [a, transpose_a, b, transpose_b, c, accumulate, addend, gradient, scales_a, scales_b] = product;
  std::uintptr_t addresses = 16;
  for (const ConstTensorView& operand : {a, b, ConstTensorView(c), addend}) {
    addresses |= reinterpret_cast<std::uintptr_t>(operand.data());
  }
  const bool turned_a = transpose_a == Transpose::yes, turned_b = transpose_b == Transpose::yes;
  return {c.rows(),      c.columns(),   turned_a ? a.rows() : a.columns(),
          turned_a,      turned_b,      a.dtype(),
          b.dtype(),     c.dtype(),     accumulate || !addend.empty(),
          scales_a.each, scales_b.each, std::uint32_t{1} << std::countr_zero(addresses)};
}

class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  // Throws Error if shapes or dtypes do not fit together.
  virtual void run(const Product& product) = 0;
  // Independent products (one per expert): a device may run them side by side.
  virtual void run_all(std::span<const Product> products) {
    for (const Product& product : products) run(product);
  }
  void multiply(ConstTensorView a, Transpose transpose_a, ConstTensorView b, Transpose transpose_b, TensorView c,
                bool accumulate) {
    run({a, transpose_a, b, transpose_b, c, accumulate});
  }
  // Looks once for the fastest algorithm of products of these shapes. Waits for the device; called while nothing is in
  // flight. Returns a description of what was done, empty if there is nothing to choose.
  virtual std::string measure(std::span<const ProductCall>) { return {}; }
  // Loads the kernels that run() takes for products of these shapes. Does not wait.
  virtual void load(std::span<const ProductCall>) {}
};

std::unique_ptr<MatrixProducts> make_cpu_matrix_products();
// Limits the calling thread's copy of the library to one thread. Every rank thread calls this first.
void use_one_library_thread();

// Workspace of matrix products on a GPU, allocated once. Known without a GPU, so that plans can count it.
//
// Number of additional streams for independent products: products of experts are too small to fill a GPU alone.
inline constexpr std::size_t product_side_streams = 4;
// Workspace of each stream in bytes, 256-byte aligned: NVIDIA's recommendation for Hopper and later.
inline constexpr std::int64_t product_workspace_bytes = 32 << 20;

}  // namespace weft
