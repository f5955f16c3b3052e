// What every kernel is handed: where its work is queued, where workspace comes from, whose time it is. One per rank.
#pragma once

#include "parallel/runtime/ledger.h"
#include "parallel/runtime/phase_clock.h"

namespace weft {

class MatrixProducts;

struct KernelContext {
  MemoryLedger& ledger;
  PhaseClock& clock;
  Stream& stream;
  MatrixProducts& products;
};

}  // namespace weft
