// A kernel that only reports its call to the observer. It can replace any function of a device's table of kernels.
#pragma once

#include <algorithm>
#include <type_traits>

#include "parallel/runtime/dry_device.h"
#include "parallel/runtime/kernel_log.h"
#include "parallel/runtime/tensor.h"

namespace weft {

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
