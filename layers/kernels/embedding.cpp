#include "layers/kernels/embedding.h"

#include "layers/kernels/kernels.h"

namespace weft {

void embedding_forward(KernelContext& context, ConstTensorView ids, ConstTensorView table, std::int64_t row_begin,
                       TensorView y) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(ids.size() == y.rows(), "an embedding has one row an id");
  require(y.columns() == table.columns() && y.dtype() == table.dtype(), "an embedding copies rows of its table");
  if (!y.empty()) context.kernels.embedding.forward(context, ids, table, row_begin, y);
}

void embedding_backward(KernelContext& context, ConstTensorView ids, ConstTensorView dy, std::int64_t row_begin,
                        TensorView dtable) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(ids.size() == dy.rows(), "an embedding has one row an id");
  require(dy.columns() == dtable.columns(), "an embedding is as wide as its table");
  if (!dy.empty() && !dtable.empty()) context.kernels.embedding.backward(context, ids, dy, row_begin, dtable);
}

}  // namespace weft
