// Lookup in the rows [row_begin, row_begin + table.rows()) of a vocabulary. Ids outside this shard give zero rows and
// no gradient, so the sum over the shards is the whole lookup. ids [tokens, 1] int32.
#pragma once

#include "layers/kernels/context.h"

namespace weft {

// table [rows, hidden]; y [tokens, hidden] in the table's dtype.
void embedding_forward(KernelContext& context, ConstTensorView ids, ConstTensorView table, std::int64_t row_begin,
                       TensorView y);
// dtable [rows, hidden] float32, added to in token order.
void embedding_backward(KernelContext& context, ConstTensorView ids, ConstTensorView dy, std::int64_t row_begin,
                        TensorView dtable);

struct EmbeddingKernels {
  decltype(&embedding_forward) forward;
  decltype(&embedding_backward) backward;
};

}  // namespace weft
