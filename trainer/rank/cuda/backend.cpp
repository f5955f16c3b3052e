#include <cuda_runtime_api.h>

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

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, const GpuKernelOptions& options)
      : device_(cuda::make_device(device)),
        layer_kernels_{cuda::make_attention_kernels(compute_capability(device), options),
                       cuda::capacity_kernels,
                       cuda::cross_entropy_kernels,
                       cuda::embedding_kernels,
                       cuda::float8_kernels,
                       cuda::load_balance_kernels,
                       cuda::permutation_kernels,
                       cuda::rms_norm_kernels,
                       cuda::rotary_kernels,
                       cuda::routing_kernels,
                       cuda::state_space_kernels,
                       cuda::swiglu_kernels},
        measured_products_(options.measured_products && !options.deterministic) {
    if (options.captured_regions) cuda::capture_regions(*device_);
  }

  Device& device() override { return *device_; }
  const LayerKernels& layer_kernels() const override { return layer_kernels_; }
  const OptimizerKernels& optimizer_kernels() const override { return optimizer_kernels_; }
  std::unique_ptr<MatrixProducts> make_products(Stream& stream, MemoryLedger& ledger) override {
    return cuda::make_matrix_products(stream, ledger, measured_products_);
  }

 private:
  std::unique_ptr<Device> device_;
  LayerKernels layer_kernels_;
  bool measured_products_;
  OptimizerKernels optimizer_kernels_ = cuda::optimizer_kernels();
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device, const GpuKernelOptions& options) {
  auto backend = std::make_unique<CudaBackend>(device, options);  // tells first that there is no device
  require_kernels(options, compute_capability(device));
  return backend;
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
