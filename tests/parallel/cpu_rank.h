// The parts that one rank of a test computes on: the CPU, a stream for every lane and a ledger of its own.
#pragma once

#include <memory>

#include "parallel/runtime/device.h"
#include "parallel/runtime/lane.h"
#include "parallel/runtime/ledger.h"

namespace weft {

struct CpuRank {
  std::unique_ptr<Device> device = make_cpu_device();
  Lanes lanes{*device};
  Stream& stream = lanes[Lane::compute];
  MemoryLedger ledger{*device, stream};
};

}  // namespace weft
