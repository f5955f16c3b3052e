// A device without memory and without work: for finding out what a step would take by walking through it. Live blocks
// share no address, and no address is usable: reading or writing one ends the program. Kernels and copies do nothing.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "parallel/runtime/device.h"
#include "parallel/runtime/kernel_log.h"

namespace weft {

// What the host finds where it has asked for a download: `destination` is staging memory.
using DryDownload = std::function<void(std::span<std::byte> destination)>;

// Blocks that are released serve again.
class DryDevice : public Device {
 public:
  // Hears of every kernel from here on, those of the layers and the optimizer included; null for none.
  void observe(KernelObserver* observer) { observer_ = observer; }
  KernelObserver* observer() const { return observer_; }

 private:
  KernelObserver* observer_ = nullptr;
};
std::unique_ptr<DryDevice> make_dry_device(DryDownload download);

// Of the dry device that the stream is of.
inline KernelObserver* kernel_observer(Stream& stream) {
  return static_cast<DryDevice&>(stream.device()).observer();
}

}  // namespace weft
