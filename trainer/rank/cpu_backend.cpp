#include "trainer/rank/backend.h"

namespace weft {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend() { use_one_library_thread(); }
  Device& device() override { return *device_; }
  const LayerKernels& layer_kernels() const override { return layer_kernels_; }
  const OptimizerKernels& optimizer_kernels() const override { return optimizer_kernels_; }
  std::unique_ptr<MatrixProducts> make_products(Stream&, MemoryLedger&) override { return make_cpu_matrix_products(); }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  LayerKernels layer_kernels_ = cpu_layer_kernels();
  OptimizerKernels optimizer_kernels_ = cpu_optimizer_kernels();
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() {
  return std::make_unique<CpuBackend>();
}

}  // namespace weft
