#include <cuda_runtime_api.h>

#include <utility>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/cuda/runtime.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

int compute_capability(int device) {
  int major = 0, minor = 0;
  WEFT_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  WEFT_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

// Without a context on the GPU, which would take some of its memory in every process.
cudaDeviceProp first_gpu() {
  cudaDeviceProp properties{};
  WEFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  return properties;
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int index, const GpuKernelOptions& options) {
  std::unique_ptr<Device> device = cuda::make_device(index);  // tells first that there is no device
#define WEFT_KERNEL_OF_CUDA(name) .name = cuda::name,
  LayerKernels kernels = {.attention = cuda::make_attention_kernels(compute_capability(index), options),
                          WEFT_FOR_LAYER_KERNELS(WEFT_KERNEL_OF_CUDA)};
  if (options.captured_regions) cuda::capture_regions(*device);
  require_kernels(options, compute_capability(index));
  const bool measured = options.measured_products && !options.deterministic;
  return std::make_unique<Backend>(Backend{std::move(device), std::move(kernels), cuda::optimizer_kernels(),
                                           [measured](Stream& stream, MemoryLedger& ledger) {
                                             return cuda::make_matrix_products(stream, ledger, measured);
                                           }});
}

std::optional<std::string> why_no_cuda() {
  return cuda::why_no_device();
}

std::optional<std::int64_t> cuda_memory() {
  if (why_no_cuda()) return std::nullopt;
  return static_cast<std::int64_t>(first_gpu().totalGlobalMem);
}

int cuda_devices() {
  return why_no_cuda() ? 0 : cuda::device_count();
}

std::optional<std::string> cuda_card() {
  if (why_no_cuda()) return std::nullopt;
  return first_gpu().name;
}

}  // namespace weft
