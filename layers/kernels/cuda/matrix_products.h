// Matrix products by cuBLASLt.
#pragma once

#include <memory>

#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/ledger.h"

namespace weft::cuda {

// Products are queued on `stream`; workspace is allocated once from `ledger`. Both outlive the products. Independent
// products (multiply_all) run side by side on streams of their own, after all work queued on `stream` before and before
// all work queued after. Without `measured`, and for shapes that are not measured, the library's first choice is taken.
std::unique_ptr<MatrixProducts> make_matrix_products(Stream& stream, MemoryLedger& ledger, bool measured);

}  // namespace weft::cuda
