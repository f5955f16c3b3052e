// Matrix products in 8 bits. Both factors are rounded to 8 bits with scales of their own, computed from the tensor at
// hand. Sums and results are those of any other product. Formats as in Micikevicius et al., "FP8 formats for deep
// learning" (arXiv:2209.05433): E4M3, and E5M2, which has less precision and more range.
//
//   float8         one scale for a factor ("per-tensor current scaling" of NVIDIA's Transformer Engine); gradients are
//                  E5M2, activations and weights E4M3
//   float8_blocks  a scale for every 128 elements of a row of activations and gradients along the inner size, and for
//                  every 128 x 128 elements of a weight; all E4M3 (DeepSeek-V3, arXiv:2412.19437, section 3.3.2)
//
// Scales are powers of two. A tensor cut elsewhere then rounds its elements to the same numbers, except those far below
// the largest one (2^-15 for E4M3). Rounding is therefore almost independent of a run's layout.
#pragma once

#include <span>

#include "layers/kernels/context.h"
#include "layers/kernels/matrix_products.h"

namespace weft {

// The inner size of products in 8 bits is a multiple of it; transposed factors are padded with zeros.
inline constexpr std::int64_t float8_inner_multiple = 16;
// The rows of products in float8_blocks are multiples of it.
inline constexpr std::int64_t float8_row_multiple = 4;

// A factor before and after rounding. `source` is [tokens, columns], or a weight.
struct Float8Factor {
  ConstTensorView source;               // float32, bfloat16 or float16
  Transpose transpose = Transpose::no;  // whether `rounded` is the transpose
  // float8_e4m3 or float8_e5m2, the shape of the source or of its transpose. It may be padded with zeros where the
  // source has rows. A transpose is padded with columns, another factor with rows, unless its scales are of `all`.
  TensorView rounded = {};
  ScaledBlock each = ScaledBlock::all;
  TensorView scales = {};  // float32, scale_shape(): written
};

// Rows and columns of a factor's scales, [1, 4] for `all`: the first is the scale, the others are workspace. `rows` and
// `inner` are those of the rounded factor.
struct ScaleShape {
  std::int64_t rows = 0, columns = 0;
};
ScaleShape scale_shape(ScaledBlock each, std::int64_t rows, std::int64_t inner);

// rounded = source / scale, rounded to nearest even. A scale is the least power of two, at least 2^-100, with which no
// element of its block exceeds the format's largest number. It is NaN, and so are all rounded elements of the block, if
// an element is not finite. All sources have one dtype; scales are of `all` in all factors or in none. Rounded factors
// have a multiple of float8_inner_multiple columns and begin at multiples of 16 bytes.
void round_to_float8(KernelContext& context, std::span<const Float8Factor> factors);

// Memory of rounded factors: the bucket, and the least bytes. The least bytes make memory depend on the number of
// routed rows only and not on their experts. `most_bytes`: for which the block has room (MemoryLedger::allocate).
struct Float8Room {
  Bucket bucket = Bucket::activations;
  std::int64_t bytes = 0, most_bytes = 0;
};
// Bytes of a rounded factor and its scales.
std::int64_t float8_bytes(ScaledBlock each, std::int64_t rows, std::int64_t inner);

// The products (MatrixProducts::run_all), with factors rounded to 8 bits in this format, which is not as_stored; c is
// bfloat16 or float32. In a product with a transposed a, a weight gradient, both factors have tokens as rows; in others
// b is a weight. The inner size is a multiple of float8_inner_multiple, except in weight gradients. In float8_blocks
// the rows of c are a multiple of float8_row_multiple and may be more than a has: those of padding become zero. Throws
// Error otherwise. Rounded factors are released before the call returns.
void multiply_in_float8(KernelContext& context, ProductFormat format, std::span<const Product> products,
                        const Float8Room& room = {});

}  // namespace weft
