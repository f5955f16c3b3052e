// Matrix products of row-major tensors through a tuned library. One object per rank: it keeps prepared products by
// shape, is called by the rank's thread only and queues its work on the stream it was made for.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/kernel_log.h"

namespace weft {

enum class Transpose : std::uint8_t { no, yes };

// c = op(a) op(b), added to c if `accumulate`, or to `addend` [m, n] of c's dtype if that is not empty.
struct Product {
  ConstTensorView a;
  Transpose transpose_a = Transpose::no;
  ConstTensorView b;
  Transpose transpose_b = Transpose::no;
  TensorView c;
  bool accumulate = false;
  ConstTensorView addend = {};
};

class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  // c = op(a) op(b) when `accumulate` is false, c += op(a) op(b) when true; c is m x n, op(a) m x k, op(b) k x n.
  // dtypes: all float32; or a and b bfloat16 or float16 (both the same) with c like them or float32. Sums are kept in
  // float32. Any size may be zero: an empty sum leaves c unchanged when accumulating and zero otherwise.
  virtual void multiply(ConstTensorView a, Transpose transpose_a, ConstTensorView b, Transpose transpose_b,
                        TensorView c, bool accumulate) = 0;
  // c = op(a) op(b) + addend, which has c's shape and dtype; rounded once or twice. c and addend do not overlap. Queued
  // on `stream` like the product.
  virtual void multiply_onto(Stream& stream, const Product& product);
  // Independent products (one per expert): a device may run them side by side.
  virtual void multiply_all(std::span<const Product> products) {
    for (const Product& p : products) multiply(p.a, p.transpose_a, p.b, p.transpose_b, p.c, p.accumulate);
  }
  // Looks once for the fastest algorithm of products of these shapes. Waits for the device; called while nothing is in
  // flight. Returns a description of what was done, empty if there is nothing to choose.
  virtual std::string measure(std::span<const ProductCall>) { return {}; }
};

std::unique_ptr<MatrixProducts> make_cpu_matrix_products();
// Limits the calling thread's copy of the library to one thread. Every rank thread calls this first.
void use_one_library_thread();

}  // namespace weft
