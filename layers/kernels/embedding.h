// Lookup in the rows [row_begin, row_begin + table.rows()) of a vocabulary. Ids outside this shard give zero rows and
// no gradient: the sum over the shards is the whole lookup.
#pragma once

#include <span>

#include "layers/kernels/context.h"

namespace weft {

// table [rows, hidden]; y [tokens, hidden] in the table's dtype.
void embedding_forward(KernelContext& context, std::span<const std::int32_t> ids, ConstTensorView table,
                       std::int64_t row_begin, TensorView y);
// dtable [rows, hidden] float32, added to in token order.
void embedding_backward(KernelContext& context, std::span<const std::int32_t> ids, ConstTensorView dy,
                        std::int64_t row_begin, TensorView dtable);

}  // namespace weft
