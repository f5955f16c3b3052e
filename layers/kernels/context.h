// The context of every kernel call: stream, memory ledger, phase clock, and the kernels and products of the rank's
// device. One per rank.
//
// A kernel of any device queues its work on `stream`. All tensors are in the device's memory, including results and
// sums that a step reports. No kernel waits for the device.
#pragma once

#include "parallel/runtime/ledger.h"
#include "parallel/runtime/phase_clock.h"

namespace weft {

class MatrixProducts;
struct LayerKernels;

struct KernelContext {
  MemoryLedger& ledger;
  PhaseClock& clock;
  Stream& stream;
  MatrixProducts& products;
  const LayerKernels& kernels;

  // Tensors of a segment, in these buckets (MemoryLedger::allocate).
  Tensor activation(DType dtype, std::int64_t rows, std::int64_t columns) const {
    return ledger.allocate(Bucket::activations, dtype, rows, columns);
  }
  Tensor routing(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t reserve_rows = 0) const {
    return ledger.allocate(Bucket::moe_routing, dtype, rows, columns, reserve_rows);
  }
  // Memory for the work that a call queues, released in the order of its stream.
  Tensor workspace(DType dtype, std::int64_t rows, std::int64_t columns) const {
    return ledger.allocate_on(stream, Bucket::workspace, dtype, rows, columns);
  }
};

}  // namespace weft
