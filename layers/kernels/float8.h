// Matrix products in 8 bits. Both factors are rounded to 8 bits with a scale of their own, which is computed from the
// tensor at hand ("per-tensor current scaling" of NVIDIA's Transformer Engine); sums and results are those of any other
// product. Formats as in Micikevicius et al., "FP8 formats for deep learning" (arXiv:2209.05433): E4M3 for activations
// and weights, E5M2, which has less precision and more range, for gradients.
//
// Scales are powers of two. A tensor cut elsewhere then rounds its elements to the same numbers, except those below
// 2^-15 of the largest one. Rounding is therefore almost independent of a run's layout.
#pragma once

#include <span>

#include "layers/kernels/context.h"
#include "layers/kernels/matrix_products.h"

namespace weft {

// The inner size of products in 8 bits is a multiple of it; transposed factors are padded with zeros.
inline constexpr std::int64_t float8_inner_multiple = 16;
// float32 numbers of a factor's row of scales: 16 bytes.
inline constexpr std::int64_t float8_scale_columns = 4;

// A factor before and after rounding.
struct Float8Factor {
  ConstTensorView source;               // [rows, columns], float32, bfloat16 or float16
  Transpose transpose = Transpose::no;  // whether `rounded` is the transpose
  // [rows, columns], or [columns, rows and padding]; the padding is zero. float8_e4m3 or float8_e5m2.
  TensorView rounded = {};
};

// rounded = source / scale, rounded to nearest even. scales [factors, float8_scale_columns] float32: the first of a
// row is the scale, the least power of two, at least 2^-100, with which no element exceeds the format's largest number.
// It is NaN, and so are all rounded elements, if an element is not finite. The rest of a row is workspace. All sources
// have one dtype.
void round_to_float8(KernelContext& context, std::span<const Float8Factor> factors, TensorView scales);

struct Float8Kernels {
  decltype(&round_to_float8) round;
};

// The dtype in which products read their factors: that of the tensors, or 8 bits.
enum class ProductFormat : std::uint8_t { as_stored, float8 };

// Memory of rounded factors: the bucket, and at least so many bytes and products, so that memory depends on the number of
// routed rows only and not on their experts. `most_bytes`: for which the block has room (MemoryLedger::allocate).
struct Float8Room {
  Bucket bucket = Bucket::activations;
  std::int64_t bytes = 0, most_bytes = 0, products = 0;
};

// The products (MatrixProducts::run_all), with factors rounded to 8 bits, c bfloat16 or float32. The inner size is a
// multiple of float8_inner_multiple, except in products with both factors transposed, whose inner size is tokens.
// Throws Error otherwise. Rounded factors are released before the call returns.
void multiply_in_float8(KernelContext& context, std::span<const Product> products, const Float8Room& room = {});

}  // namespace weft
