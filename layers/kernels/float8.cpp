#include "layers/kernels/float8.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "layers/kernels/kernels.h"

namespace weft {
namespace {

std::int64_t rounded_up(std::int64_t size, std::int64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// Factors a and b of a product, with its inner size as their columns.
std::array<Float8Factor, 2> factors_of(const Product& product, ProductFormat format) {
  const bool in_blocks = format == ProductFormat::float8_blocks;
  const bool of_weights = product.transpose_a == Transpose::yes;  // a weight gradient
  const auto factor = [&](ConstTensorView source, bool turned, GradientFactor self, ScaledBlock each) {
    const bool wide = !in_blocks && product.gradient == self;
    const std::int64_t rows = self == GradientFactor::a ? product.c.rows() : product.c.columns();
    const std::int64_t inner = turned ? source.rows() : source.columns();
    Float8Factor made{source, turned ? Transpose::yes : Transpose::no};
    made.rounded = TensorView(nullptr, wide ? DType::float8_e5m2 : DType::float8_e4m3, rows,
                              of_weights ? rounded_up(inner, float8_inner_multiple) : inner);
    made.each = in_blocks ? each : ScaledBlock::all;
    const auto [scale_rows, scale_columns] = scale_shape(made.each, rows, made.rounded.columns());
    made.scales = TensorView(nullptr, DType::float32, scale_rows, scale_columns);
    return made;
  };
  const std::array factors = {
      factor(product.a, of_weights, GradientFactor::a, ScaledBlock::row),
      factor(product.b, product.transpose_b == Transpose::no, GradientFactor::b,
             of_weights ? ScaledBlock::row : ScaledBlock::square),
  };
  require(factors.front().rounded.columns() % float8_inner_multiple == 0,
          "the inner size of a product in 8 bits is a multiple of 16");
  require(!in_blocks || (product.c.rows() % float8_row_multiple == 0 && product.c.columns() % float8_row_multiple == 0),
          "rows and columns of a product in float8_blocks are multiples of 4");
  return factors;
}

}  // namespace

ScaleShape scale_shape(ScaledBlock each, std::int64_t rows, std::int64_t inner) {
  const auto blocks = [](std::int64_t size) { return rounded_up(size, scaled_block_size) / scaled_block_size; };
  switch (each) {
    case ScaledBlock::all:
      return {1, 4};
    case ScaledBlock::row:
      return {blocks(inner), rows};
    case ScaledBlock::square:
      return {blocks(rows), rounded_up(blocks(inner), 4)};
  }
  fail("a factor is scaled by no known block");
}

std::int64_t float8_bytes(ScaledBlock each, std::int64_t rows, std::int64_t inner) {
  const auto [scale_rows, scale_columns] = scale_shape(each, rows, inner);
  // Factors and scales begin at multiples of 16 bytes.
  return rounded_up(rows * inner, 16) + rounded_up(scale_rows * scale_columns * size_of(DType::float32), 16);
}

void round_to_float8(KernelContext& context, std::span<const Float8Factor> factors) {
  for (const auto& [source, transpose, rounded, each, scales] : factors) {
    const bool turned = transpose == Transpose::yes, all = each == ScaledBlock::all;
    require(size_of(rounded.dtype()) == 1 && source.dtype() == factors.front().source.dtype() &&
                all == (factors.front().each == ScaledBlock::all),
            "factors of one dtype are rounded to 8 bits, all with one scale or none");
    require(rounded.columns() % float8_inner_multiple == 0, "a rounded factor has a multiple of 16 columns");
    require(turned ? rounded.rows() == source.columns() && rounded.columns() >= source.rows()
                   : rounded.columns() == source.columns() &&
                         (all ? rounded.rows() == source.rows() : rounded.rows() >= source.rows()),
            "a rounded factor has the shape of its source, or of its transpose, and padding");
    const auto [scale_rows, scale_columns] = scale_shape(each, rounded.rows(), rounded.columns());
    require(scales.dtype() == DType::float32 && scales.rows() == scale_rows && scales.columns() == scale_columns,
            "each block of a factor has a scale");
  }
  run_elementwise(context, context.kernels.round_to_float8, factors);
}

void multiply_in_float8(KernelContext& context, ProductFormat format, std::span<const Product> products,
                        const Float8Room& room) {
  if (products.empty()) return;
  std::vector<Float8Factor> factors;
  std::int64_t bytes = 0;
  for (const Product& product : products) {
    for (const Float8Factor& factor : factors_of(product, format)) {
      bytes += float8_bytes(factor.each, factor.rounded.rows(), factor.rounded.columns());
      factors.push_back(factor);
    }
  }
  bytes = std::max(bytes, room.bytes);
  Tensor storage = context.ledger.allocate(room.bucket, DType::float8_e4m3, bytes, 1, std::max(bytes, room.most_bytes));
  std::byte* next = storage.view().data();
  const auto placed = [&](TensorView shape) {
    const TensorView view(next, shape.dtype(), shape.rows(), shape.columns());
    next += rounded_up(shape.bytes(), 16);
    return view;
  };
  for (Float8Factor& factor : factors) {
    factor.rounded = placed(factor.rounded);
    factor.scales = placed(factor.scales);
  }
  round_to_float8(context, factors);
  std::vector<Product> rounded(products.begin(), products.end());
  const auto scales_of = [](const Float8Factor& factor) -> FactorScales {
    if (factor.each != ScaledBlock::all) return {factor.scales, factor.each};
    return {ConstTensorView(factor.scales.data(), DType::float32, 1, 1)};
  };
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    const Float8Factor &a = factors[2 * i], &b = factors[2 * i + 1];
    Product& product = rounded[i];
    product.transpose_a = Transpose::no;
    product.transpose_b = Transpose::yes;
    product.a = a.rounded;
    product.b = b.rounded;
    product.scales_a = scales_of(a);
    product.scales_b = scales_of(b);
  }
  const PhaseClock::Scope scope(context.clock, Phase::products, context.stream);
  context.products.run_all(rounded);
}

}  // namespace weft
