#include "parallel/runtime/staging.h"

namespace weft {

Staging::Staging(Device& device, DType dtype, std::int64_t rows, std::int64_t columns)
    : device_(device), capacity_(std::max<std::int64_t>(64, rows * columns * size_of(dtype))) {
  view_ = TensorView(device.allocate_staging(capacity_), dtype, rows, columns);
}

Staging::~Staging() {
  // A copy in flight still needs the memory. If the device has failed, no copy is in flight, and another call reports
  // the failure.
  try {
    finish();
  } catch (const Error&) {
  }
  device_.release_staging(view_.data(), capacity_);
}

void Staging::upload(Stream& stream, TensorView destination) {
  require(destination.size() == view_.size() && destination.dtype() == view_.dtype(), "an upload keeps size and dtype");
  if (view_.empty()) return;
  device_.copy(stream, view_.data(), destination.data(), view_.bytes());
  last_copy_ = stream.record();
}

void Staging::download(Stream& stream, ConstTensorView source) {
  require(source.size() == view_.size() && source.dtype() == view_.dtype(), "a download keeps size and dtype");
  if (view_.empty()) return;
  device_.copy(stream, source.data(), view_.data(), view_.bytes());
  last_copy_ = stream.record();
}

void Staging::finish() {
  if (last_copy_) last_copy_->synchronize();
}

}  // namespace weft
