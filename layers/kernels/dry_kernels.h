// Kernels that compute nothing, for a dry run of a step that measures its needs (runtime/dry_device.h): they report
// their arguments to the device's observer.
#pragma once

#include "layers/kernels/kernels.h"
#include "layers/kernels/matrix_products.h"

namespace weft {

// Workspace that a dry kernel allocates.
enum class DryWorkspace : std::uint8_t {
  of_cpu,  // all workspace of the CPU's kernels
  // Workspace of the products only: workspace of cuDNN and of other kernels' sums is known only on a GPU with its
  // libraries.
  of_cuda,
};

LayerKernels dry_layer_kernels(DryWorkspace workspace);
// Products on `stream`, with workspace from `ledger`; both must outlive the products.
std::unique_ptr<MatrixProducts> make_dry_matrix_products(DryWorkspace workspace, Stream& stream, MemoryLedger& ledger);

}  // namespace weft
