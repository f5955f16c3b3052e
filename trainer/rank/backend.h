// What a rank computes with: a device, and the kernels and libraries that work on it. One per rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "layers/kernels/gpu_kernel_options.h"
#include "layers/kernels/kernels.h"
#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/lane.h"
#include "parallel/runtime/ledger.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Device& device() = 0;
  virtual const LayerKernels& layer_kernels() const = 0;
  virtual const OptimizerKernels& optimizer_kernels() const = 0;
  // Products queued on `stream`, with workspace from `ledger`; both outlive them.
  virtual std::unique_ptr<MatrixProducts> make_products(Stream& stream, MemoryLedger& ledger) = 0;
};

// On GPU `device` of this machine. Called on the rank's own thread. Throws Error (request) where there is none, saying
// why, or where this build has no CUDA.
std::unique_ptr<Backend> make_cuda_backend(int device, const GpuKernelOptions& options = {});
// Why no GPU can be used here, or nothing.
std::optional<std::string> why_no_cuda();
// Bytes of memory of GPU 0 of this machine, all in all; nothing where no GPU can be used.
std::optional<std::int64_t> cuda_memory();

// Tells the calling thread's copy of the CPU's libraries to use one thread.
std::unique_ptr<Backend> make_cpu_backend();

}  // namespace weft
