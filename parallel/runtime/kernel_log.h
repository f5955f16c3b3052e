// Reports of the kernels that a device without work (dry_device.h) was asked to run: name and amounts.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/enum_names.h"

namespace weft {

enum class KernelKind : std::uint8_t { product, attention, elementwise };
constexpr auto enum_names(KernelKind) {
  return name_list("product", "attention", "element-wise");
}

// Elements of a factor in 8 bits that share a scale: all, those of a row in runs of 128, or squares of 128 x 128.
enum class ScaledBlock : std::uint8_t { all, row, square };
inline constexpr std::int64_t scaled_block_size = 128;

// A product: c [rows, columns] = op(a) op(b), summed over `inner`.
struct ProductCall {
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool transpose_a = false, transpose_b = false;
  DType input_a = DType::float32, input_b = DType::float32, output = DType::float32;
  bool adds = false;  // the product is added to c or to another tensor
  ScaledBlock scaled_a = ScaledBlock::all, scaled_b = ScaledBlock::all;  // of factors of 8 bits
  std::uint32_t alignment = 16;  // common to the addresses of all operands: bytes, at most 16

  auto operator<=>(const ProductCall&) const = default;
};

// One call of a kernel. A call may be several launches (a second launch finishes sums over rows).
struct KernelCall {
  std::string_view name = {};  // the name of its function
  KernelKind kind = KernelKind::elementwise;
  std::int64_t read = 0, written = 0;  // bytes of its operands, each counted once; caches are not modelled
  double flops = 0.0;                  // of products and attention; 0 of all others
  DType dtype = DType::float32;        // of the factors of products and attention
  ProductCall product = {};            // of a product
};

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  virtual void called(const KernelCall& call) = 0;
};

}  // namespace weft
