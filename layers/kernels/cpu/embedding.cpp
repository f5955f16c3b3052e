#include "layers/kernels/embedding.h"

#include <cstring>

#include "parallel/runtime/elementwise.h"

namespace weft {

void embedding_forward(KernelContext& context, std::span<const std::int32_t> ids, ConstTensorView table,
                       std::int64_t row_begin, TensorView y) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise);
  require(static_cast<std::int64_t>(ids.size()) == y.rows(), "an embedding has one row an id");
  require(y.columns() == table.columns() && y.dtype() == table.dtype(), "an embedding copies rows of its table");
  const std::int64_t row_bytes = table.columns() * size_of(table.dtype());
  if (row_bytes == 0) return;
  std::byte* to = y.data();
  for (const std::int32_t id : ids) {
    const std::int64_t row = id - row_begin;
    if (row >= 0 && row < table.rows()) {
      std::memcpy(to, table.data() + row * row_bytes, row_bytes);
    } else {
      std::memset(to, 0, row_bytes);
    }
    to += row_bytes;
  }
}

void embedding_backward(KernelContext& context, std::span<const std::int32_t> ids, ConstTensorView dy,
                        std::int64_t row_begin, TensorView dtable) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise);
  require(static_cast<std::int64_t>(ids.size()) == dy.rows(), "an embedding has one row an id");
  require(dy.columns() == dtable.columns(), "an embedding is as wide as its table");
  for (std::int64_t token = 0; token < dy.rows(); ++token) {
    const std::int64_t row = ids[static_cast<std::size_t>(token)] - row_begin;
    if (row >= 0 && row < dtable.rows()) add(dy.rows_from(token, 1), dtable.rows_from(row, 1));
  }
}

}  // namespace weft
