// Stands before the product's header of the same name when a source is compiled for the emulator. The interface is the
// same, but the kernel becomes a closure on the emulated stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_emulator/kernel.h"
#include "parallel/runtime/cuda/runtime.h"

namespace weft::cuda {

struct LaunchStream {
  cudaStream_t stream;
  std::source_location place;
  LaunchStream(cudaStream_t launch_stream,  // NOLINT(google-explicit-constructor)
               std::source_location launch_place = std::source_location::current())
      : stream(launch_stream), place(launch_place) {}
};

template <typename... Parameters, typename... Arguments>
void launch(LaunchStream on, dim3 blocks, dim3 threads, std::size_t shared_bytes, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "one argument for each parameter of the kernel");
  static_assert((std::is_trivially_copyable_v<std::decay_t<Parameters>> && ...), "parameters are copied as bytes");
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  cuda_emulator::KernelLaunch launched{blocks, threads, shared_bytes, on.place, {}, {}};
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  std::apply(
      [&](const auto&... value) {
        [[maybe_unused]] const auto note_pointer = [&](const auto& argument) {
          if constexpr (std::is_pointer_v<std::decay_t<decltype(argument)>>)
            launched.pointers.push_back(reinterpret_cast<const void*>(argument));
        };
        (note_pointer(value), ...);
      },
      values);
  launched.thread = [kernel, values] { std::apply(kernel, values); };
  check(cuda_emulator::enqueue_kernel(on.stream, std::move(launched)), "a kernel launch", on.place);
}

template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(cuda_emulator::device::dynamic_shared_memory());
}

}  // namespace weft::cuda
