// Conversion between parts of the model that compute in different dtypes. Nothing is copied if the dtypes are equal.
#pragma once

#include "layers/kernels/context.h"

namespace weft {

// Dtype for communication between two parts: the narrower of theirs, or `first` if both have the same width.
DType narrower(DType first, DType second);

// Returns the tensor itself if it has `dtype`. Otherwise releases it and returns a copy in `bucket`, in a block with
// room for `reserve_rows` (see MemoryLedger::allocate).
Tensor converted(KernelContext& kernels, Tensor tensor, DType dtype, Bucket bucket, std::int64_t reserve_rows = 0);

}  // namespace weft
