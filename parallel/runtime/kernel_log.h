// What kernels would do, heard from a device that does nothing (dry_device.h): which, and on how much.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

#include "parallel/runtime/dtype.h"

namespace weft {

enum class KernelKind : std::uint8_t { product, attention, elementwise };
constexpr std::string_view name_of(KernelKind kind) {
  constexpr std::string_view names[] = {"product", "attention", "element-wise"};
  return names[static_cast<std::size_t>(kind)];
}

// A product: c [rows, columns] = op(a) op(b), summed over `inner`.
struct ProductCall {
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool transpose_a = false, transpose_b = false;
  DType input = DType::float32, output = DType::float32;
  bool adds = false;  // to c, or to another tensor

  auto operator<=>(const ProductCall&) const = default;
};

// One call of a kernel. A call may be several launches (sums over rows are finished by a second one).
struct KernelCall {
  std::string_view name = {};  // as its function is called
  KernelKind kind = KernelKind::elementwise;
  std::int64_t read = 0, written = 0;  // bytes of its operands, each once: what a cache holds on to is not known here
  double flops = 0.0;                  // of products and attention; 0 of all others
  DType dtype = DType::float32;        // of what products and attention multiply
  ProductCall product = {};            // of a product
};

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  virtual void called(const KernelCall& call) = 0;
};

}  // namespace weft
