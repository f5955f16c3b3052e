// What every kernel is handed: where its work is queued, where workspace comes from, whose time it is, and what the
// rank's device brings. One per rank.
//
// A kernel of any device queues its work on `stream`; tensors are in the device's memory, results too, sums that a step
// reports included. Nothing here waits for the device.
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
};

}  // namespace weft
