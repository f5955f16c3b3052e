#include "tests/layers/test_backend.h"

namespace weft {
namespace {

class CpuTestBackend final : public TestBackend {
 public:
  CpuTestBackend() { use_one_library_thread(); }
  Device& device() override { return *device_; }
  const LayerKernels& kernels() const override { return kernels_; }
  std::unique_ptr<MatrixProducts> make_products(Stream&, MemoryLedger&, std::int64_t) override {
    return make_cpu_matrix_products();
  }

 private:
  std::unique_ptr<Device> device_ = make_cpu_device();
  LayerKernels kernels_ = cpu_layer_kernels();
};

}  // namespace

std::unique_ptr<TestBackend> make_test_backend() {
  return std::make_unique<CpuTestBackend>();
}

}  // namespace weft
