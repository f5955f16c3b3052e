#include "layers/kernels/cpu/kernels.h"

#include <cstring>

#include "parallel/runtime/elementwise.h"

namespace weft::cpu {

void embedding_forward(KernelContext&, ConstTensorView ids, ConstTensorView table, std::int64_t row_begin,
                       TensorView y) {
  const std::int64_t row_bytes = table.columns() * size_of(table.dtype());
  if (row_bytes == 0) return;
  std::byte* to = y.data();
  for (const std::int32_t id : ids.as<std::int32_t>()) {
    const std::int64_t row = id - row_begin;
    if (row >= 0 && row < table.rows()) {
      std::memcpy(to, table.data() + row * row_bytes, row_bytes);
    } else {
      std::memset(to, 0, row_bytes);
    }
    to += row_bytes;
  }
}

void embedding_backward(KernelContext& context, ConstTensorView ids, ConstTensorView dy, std::int64_t row_begin,
                        TensorView dtable) {
  for (std::int64_t token = 0; token < dy.rows(); ++token) {
    const std::int64_t row = ids.as<std::int32_t>()[static_cast<std::size_t>(token)] - row_begin;
    if (row >= 0 && row < dtable.rows()) add(context.stream, dy.rows_from(token, 1), dtable.rows_from(row, 1));
  }
}

const EmbeddingKernels embedding_kernels = {embedding_forward, embedding_backward};

}  // namespace weft::cpu
