// The kernels of a CUDA device for the tests of layers.
#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/device.h"
#include "tests/layers/test_backend.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

class CudaTestBackend final : public TestBackend {
 public:
  CudaTestBackend() : missing_(cuda::why_no_device()) {
    backend_ = missing_ ? make_cpu_backend() : make_cuda_backend(0);
  }
  std::optional<std::string> unavailable() const override {
    if (!missing_) return std::nullopt;
    return "needs a GPU: " + *missing_;
  }
  Device& device() override { return *backend_->device; }
  const LayerKernels& kernels() const override { return backend_->layer_kernels; }
  std::unique_ptr<MatrixProducts> make_products(Stream& stream, MemoryLedger& ledger,
                                                std::int64_t workspace_bytes) override {
    if (missing_) return backend_->make_products(stream, ledger);
    return cuda::make_matrix_products(stream, ledger, false, workspace_bytes);
  }
  // Hopper's tensor cores align 32 products and the sum so far to the largest and keep 13 bits behind its first. An
  // H200 was off by 1.05 * 2^-13 of the magnitudes in the worst of 40,000 sums.
  double float8_sum_error() const override { return 0x1p-12; }
  bool scans_in_dtype() const override { return true; }

 private:
  std::optional<std::string> missing_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace

std::unique_ptr<TestBackend> make_test_backend() {
  return std::make_unique<CudaTestBackend>();
}

}  // namespace weft
