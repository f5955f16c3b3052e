#include "layers/kernels/float8.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "layers/kernels/kernels.h"

namespace weft {
namespace {

std::int64_t padded(std::int64_t size) {
  return (size + float8_inner_multiple - 1) / float8_inner_multiple * float8_inner_multiple;
}

// A factor with its inner size as columns, and the bytes that it takes.
Float8Factor factor_of(ConstTensorView source, bool turned, bool gradient) {
  const std::int64_t rows = turned ? source.columns() : source.rows();
  const std::int64_t inner = turned ? padded(source.rows()) : source.columns();
  require(inner % float8_inner_multiple == 0, "the inner size of a product in 8 bits is a multiple of 16");
  return {source, turned ? Transpose::yes : Transpose::no,
          TensorView(nullptr, gradient ? DType::float8_e5m2 : DType::float8_e4m3, rows, inner)};
}

}  // namespace

void round_to_float8(KernelContext& context, std::span<const Float8Factor> factors, TensorView scales) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(scales.dtype() == DType::float32 && scales.rows() == std::ssize(factors) &&
              scales.columns() == float8_scale_columns,
          "each factor has a scale");
  for (const auto& [source, transpose, rounded] : factors) {
    const bool turned = transpose == Transpose::yes;
    require(size_of(rounded.dtype()) == 1 && source.dtype() == factors.front().source.dtype(),
            "factors of one dtype are rounded to 8 bits");
    require(rounded.rows() == (turned ? source.columns() : source.rows()) &&
                (turned ? rounded.columns() >= source.rows() : rounded.columns() == source.columns()),
            "a rounded factor has the shape of its source, or of its transpose");
  }
  context.kernels.float8.round(context, factors, scales);
}

void multiply_in_float8(KernelContext& context, std::span<const Product> products, const Float8Room& room) {
  if (products.empty()) return;
  std::vector<Float8Factor> factors;
  std::int64_t bytes = 0;
  for (const Product& product : products) {
    const auto& [a, transpose_a, b, transpose_b, c, accumulate, addend, gradient, scale_a, scale_b] = product;
    factors.push_back(factor_of(a, transpose_a == Transpose::yes, gradient == GradientFactor::a));
    factors.push_back(factor_of(b, transpose_b == Transpose::no, gradient == GradientFactor::b));
  }
  for (const Float8Factor& factor : factors) bytes += padded(factor.rounded.bytes());
  bytes = std::max(bytes, room.bytes);
  Tensor storage = context.ledger.allocate(room.bucket, DType::float8_e4m3, bytes, 1, std::max(bytes, room.most_bytes));
  const std::int64_t scale_rows = 2 * std::max<std::int64_t>(room.products, std::ssize(products));
  Tensor scales = context.ledger.allocate(room.bucket, DType::float32, scale_rows, float8_scale_columns);
  std::byte* next = storage.view().data();
  for (Float8Factor& factor : factors) {
    factor.rounded = TensorView(next, factor.rounded.dtype(), factor.rounded.rows(), factor.rounded.columns());
    next += padded(factor.rounded.bytes());
  }
  round_to_float8(context, factors, scales.view().rows_from(0, std::ssize(factors)));
  std::vector<Product> rounded(products.begin(), products.end());
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    const auto scale = [&](std::size_t factor) {
      const ConstTensorView row = scales.view().rows_from(static_cast<std::int64_t>(factor), 1);
      return ConstTensorView(row.data(), DType::float32, 1, 1);
    };
    Product& product = rounded[i];
    product.transpose_a = Transpose::no;
    product.transpose_b = Transpose::yes;
    product.a = factors[2 * i].rounded;
    product.b = factors[2 * i + 1].rounded;
    product.scale_a = scale(2 * i);
    product.scale_b = scale(2 * i + 1);
  }
  const PhaseClock::Scope scope(context.clock, Phase::products, context.stream);
  context.products.run_all(rounded);
}

}  // namespace weft
