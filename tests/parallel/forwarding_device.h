// The CPU device behind an interface that tests override in part.
#pragma once

#include <memory>

#include "parallel/runtime/device.h"

namespace weft {

class ForwardingDevice : public Device {
 public:
  std::unique_ptr<Stream> create_stream(std::string_view lane) override { return cpu_->create_stream(lane); }
  void* allocate(std::int64_t bytes, Stream& stream) override { return cpu_->allocate(bytes, stream); }
  void release(void* data, std::int64_t bytes, Stream& stream) override { cpu_->release(data, bytes, stream); }
  std::int64_t system_allocations() const override { return cpu_->system_allocations(); }
  void* allocate_staging(std::int64_t bytes) override { return cpu_->allocate_staging(bytes); }
  void release_staging(void* data, std::int64_t bytes) override { cpu_->release_staging(data, bytes); }
  void copy(Stream& stream, const void* from, void* to, std::int64_t bytes) override {
    cpu_->copy(stream, from, to, bytes);
  }
  const ElementwiseKernels& elementwise() const override { return cpu_->elementwise(); }

 private:
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

}  // namespace weft
