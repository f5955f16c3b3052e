// The CPU's backend on a device that a test puts in the place of the CPU's own.
#pragma once

#include <memory>
#include <utility>

#include "trainer/rank/backend.h"

namespace weft {

template <typename TestDevice>
class BackendOn final : public Backend {
 public:
  // The arguments are those of the device.
  template <typename... Arguments>
  explicit BackendOn(Arguments&&... arguments) : device_(std::forward<Arguments>(arguments)...) {}

  Device& device() override { return device_; }
  const LayerKernels& layer_kernels() const override { return cpu_->layer_kernels(); }
  const OptimizerKernels& optimizer_kernels() const override { return cpu_->optimizer_kernels(); }
  std::unique_ptr<MatrixProducts> make_products(Stream& stream, MemoryLedger& ledger) override {
    return cpu_->make_products(stream, ledger);
  }

 private:
  std::unique_ptr<Backend> cpu_ = make_cpu_backend();
  TestDevice device_;
};

}  // namespace weft
