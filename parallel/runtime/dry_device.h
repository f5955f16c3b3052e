// A device without memory and without work, to find the cost of a step by walking through the step. Kernels and copies
// do nothing. Live blocks share no address, and no address is usable: a read or write at one ends the program.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "parallel/runtime/device.h"
#include "parallel/runtime/kernel_log.h"

namespace weft {

// Fills the staging memory `destination` in place of a download from the device.
using DryDownload = std::function<void(std::span<std::byte> destination)>;

// Released blocks are reused.
class DryDevice : public Device {
 public:
  // The observer is told of every kernel from here on, also of layers and optimizer; null for none.
  void observe(KernelObserver* observer) { observer_ = observer; }
  KernelObserver* observer() const { return observer_; }

 private:
  KernelObserver* observer_ = nullptr;
};
std::unique_ptr<DryDevice> make_dry_device(DryDownload download);

// The observer of the dry device that `stream` belongs to.
inline KernelObserver* kernel_observer(Stream& stream) {
  return static_cast<DryDevice&>(stream.device()).observer();
}

}  // namespace weft
