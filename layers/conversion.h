// The borders between parts of the model that compute in different dtypes. Where the dtypes are equal nothing is
// copied.
#pragma once

#include "layers/kernels/context.h"

namespace weft {

// What travels between ranks on the way from one part to the other; the first where both are equally wide.
DType narrower(DType first, DType second);

// The tensor itself where it has the dtype, otherwise a copy of it in `bucket`, with room for `reserve_rows` (see
// MemoryLedger::allocate), in whose favour the tensor is released.
Tensor converted(KernelContext& kernels, Tensor tensor, DType dtype, Bucket bucket, std::int64_t reserve_rows = 0);

}  // namespace weft
