#include "layers/conversion.h"

#include "parallel/runtime/elementwise.h"

namespace weft {

DType narrower(DType first, DType second) {
  return size_of(second) < size_of(first) ? second : first;
}

Tensor converted(KernelContext& kernels, Tensor tensor, DType dtype, Bucket bucket, std::int64_t reserve_rows) {
  if (tensor.dtype() == dtype) return tensor;
  const PhaseClock::Scope scope(kernels.clock, Phase::elementwise, kernels.stream);
  Tensor copy = kernels.ledger.allocate(bucket, dtype, tensor.rows(), tensor.columns(), reserve_rows);
  cast(kernels.stream, tensor, copy);
  return copy;
}

}  // namespace weft
