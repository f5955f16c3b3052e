// A device without memory and without work, to find the cost of a step by walking through the step. Kernels and copies
// do nothing. Live blocks share no address, and no address is usable: a read or write at one ends the program.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <type_traits>

#include "parallel/runtime/device.h"
#include "parallel/runtime/kernel_log.h"
#include "parallel/runtime/tensor.h"

namespace weft {

// Fills the staging memory `destination` in place of a download from the device.
using DryDownload = std::function<void(std::span<std::byte> destination)>;

// Released blocks are reused.
class DryDevice : public Device {
 public:
  // The observer is told of every kernel from here on, also of layers and optimizer; null for none.
  void observe(KernelObserver* observer) { observer_ = observer; }
  KernelObserver* observer() const { return observer_; }
  // Blocks of host memory that came beside those that were there, by bytes: the most at once.
  virtual void count_host_blocks() = 0;  // from here on
  virtual std::map<std::int64_t, std::int64_t> host_blocks() const = 0;

 private:
  KernelObserver* observer_ = nullptr;
};
std::unique_ptr<DryDevice> make_dry_device(DryDownload download);

// The observer of the dry device that `stream` belongs to.
inline KernelObserver* kernel_observer(Stream& stream) {
  return static_cast<DryDevice&>(stream.device()).observer();
}

struct KernelName {
  template <std::size_t length>
  consteval KernelName(const char (&name)[length]) {  // NOLINT(google-explicit-constructor)
    std::copy_n(name, length, text);
  }
  char text[32] = {};
};

inline void tell(Stream& stream, const KernelCall& call) {
  if (KernelObserver* observer = kernel_observer(stream)) observer->called(call);
}

// Whether a kernel reads what it writes.
enum class Writes : std::uint8_t { over, onto };

inline Stream& stream_of(Stream& stream) {
  return stream;
}
template <typename Context>
Stream& stream_of(Context& context) {
  return context.stream;
}

template <typename Argument>
void add_operand(KernelCall& call, Writes writes, const Argument& argument) {
  if constexpr (std::is_same_v<Argument, ConstTensorView>) {
    call.read += argument.bytes();
  } else if constexpr (std::is_same_v<Argument, TensorView>) {
    call.written += argument.bytes();
    if (writes == Writes::onto) call.read += argument.bytes();
  }
}

// A kernel that only reports its call to the observer; it can replace any function of a device's table of kernels.
// Reports the bytes of all tensor views among the arguments. The first argument is the stream or holds it.
template <KernelName name, Writes writes = Writes::over>
struct DryKernel {
  template <typename... Arguments>
  using Function = void (*)(Arguments...);
  template <typename First, typename... Arguments>
  constexpr operator Function<First, Arguments...>() const {  // NOLINT(google-explicit-constructor)
    return [](First first, Arguments... arguments) {
      KernelObserver* observer = kernel_observer(stream_of(first));
      if (observer == nullptr) return;
      KernelCall call{.name = name.text};
      (add_operand(call, writes, arguments), ...);
      observer->called(call);
    };
  }
};

}  // namespace weft
