// Kernels that compute nothing, for a walk through a step that is to find out what it takes (runtime/dry_device.h):
// they tell the device's observer what they were called with.
#pragma once

#include "layers/kernels/kernels.h"
#include "layers/kernels/matrix_products.h"

namespace weft {

// What a device's kernels take as workspace while they run.
enum class DryWorkspace : std::uint8_t {
  of_cpu,  // all of it
  // That of the products alone: what cuDNN and the sums of other kernels take, only a GPU and its libraries tell.
  of_cuda,
};

LayerKernels dry_layer_kernels(DryWorkspace workspace);
// Products of `stream`, with workspace from `ledger`; both outlive them.
std::unique_ptr<MatrixProducts> make_dry_matrix_products(DryWorkspace workspace, Stream& stream, MemoryLedger& ledger);

}  // namespace weft
