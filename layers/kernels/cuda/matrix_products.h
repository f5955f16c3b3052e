// Matrix products by cuBLASLt.
#pragma once

#include <memory>

#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/ledger.h"

namespace weft::cuda {

// Queued on `stream`; workspace comes from `ledger`, once. Both outlive the products. Independent products
// (multiply_all) run side by side on streams of their own, between what was queued on `stream` before and after.
// Without `measured`, and for shapes that are not measured, the library's first choice is taken.
std::unique_ptr<MatrixProducts> make_matrix_products(Stream& stream, MemoryLedger& ledger, bool measured);

}  // namespace weft::cuda
