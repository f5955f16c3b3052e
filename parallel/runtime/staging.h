// Host memory for transfers to and from a device. Between filling and uploading, and between downloading and reading,
// the host waits: `finish()` blocks until the last queued copy is done.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "parallel/runtime/device.h"

namespace weft {

class Staging {
 public:
  // `device` outlives the staging memory. Contents are undefined.
  Staging(Device& device, DType dtype, std::int64_t rows, std::int64_t columns = 1);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Host code may access the elements if no copy is in flight.
  template <typename T>
  std::span<T> as() {
    return view_.as<T>();
  }
  // Queue a copy of all elements. Equal dtypes and sizes.
  void upload(Stream& stream, TensorView destination);
  void download(Stream& stream, ConstTensorView source);
  // Blocks the host until the queued copies are done.
  void finish();

 private:
  Device& device_;
  std::int64_t capacity_;
  TensorView view_;
  Fence last_copy_;
};

// Blocking conveniences for set-up, reports and tests; never inside a step.
template <typename T>
void write(Stream& stream, std::span<const T> values, TensorView destination) {
  if (values.empty()) return;
  Staging staging(stream.device(), dtype_of<T>, static_cast<std::int64_t>(values.size()));
  std::ranges::copy(values, staging.as<T>().begin());
  staging.upload(stream, destination);
  staging.finish();
}
template <typename T>
std::vector<T> read(Stream& stream, ConstTensorView source) {
  if (source.empty()) return {};
  Staging staging(stream.device(), source.dtype(), source.rows(), source.columns());
  staging.download(stream, source);
  staging.finish();
  const std::span<T> values = staging.as<T>();
  return {values.begin(), values.end()};
}

}  // namespace weft
