// The backend of a rank: a device, and the kernels and libraries that work on it. One per rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "layers/kernels/gpu_kernel_options.h"
#include "layers/kernels/kernels.h"
#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/ledger.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {

struct Backend {
  std::unique_ptr<Device> device;
  LayerKernels layer_kernels;
  OptimizerKernels optimizer_kernels;
  // Matrix products queued on `stream`, with workspace from `ledger`. Stream and ledger outlive the products.
  std::function<std::unique_ptr<MatrixProducts>(Stream& stream, MemoryLedger& ledger)> make_products;
};

// A backend on GPU `device` of this machine. Called on the rank's own thread. Throws Error (request) saying why if the
// GPU cannot be used, or if this build has no CUDA.
std::unique_ptr<Backend> make_cuda_backend(int device, const GpuKernelOptions& options = {});
// The reason why no GPU can be used here; nothing if one can.
std::optional<std::string> why_no_cuda();
// Total memory of GPU 0 of this machine, in bytes; nothing if no GPU can be used.
std::optional<std::int64_t> cuda_memory();
// GPUs of this machine that can be used.
int cuda_devices();
// The name of GPU 0 of this machine, as nvidia-smi tells it; nothing if no GPU can be used.
std::optional<std::string> cuda_card();

// The CUDA libraries that this process runs with, "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.9", or "cpu"
// if the CUDA backend is not built. Needs neither a GPU nor a driver.
std::string cuda_versions();

// A backend on the CPU. Sets the CPU's libraries to one thread for the calling thread.
std::unique_ptr<Backend> make_cpu_backend();

}  // namespace weft
