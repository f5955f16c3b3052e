// The only way in which Weft starts a kernel: a function instead of <<<>>>. The conversion of arguments to the kernel's
// parameters is explicit, and errors are checked in one place. The tests can put a header of the same name before this
// one that runs the kernel on the host (tests/cuda_emulator).
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "parallel/runtime/cuda/runtime.h"

namespace weft::cuda {

// A stream, and the source location that queues on the stream. A call of `launch` creates it implicitly.
struct LaunchStream {
  cudaStream_t stream;
  std::source_location place;
  LaunchStream(cudaStream_t launch_stream,  // NOLINT(google-explicit-constructor)
               std::source_location launch_place = std::source_location::current())
      : stream(launch_stream), place(launch_place) {}
};

// Queues kernel<<<blocks, threads, shared_bytes, stream>>>(arguments...) and returns; an empty grid queues nothing.
// Throws Error naming the place of the call. A later call reports errors inside the kernel.
template <typename... Parameters, typename... Arguments>
void launch(LaunchStream on, dim3 blocks, dim3 threads, std::size_t shared_bytes, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "one argument for each parameter of the kernel");
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  // Every kernel may use this much. More must be allowed for each kernel and device.
  constexpr std::size_t shared_bytes_for_all = std::size_t{48} << 10;
  if (shared_bytes > shared_bytes_for_all) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "shared memory of a kernel", on.place);
  }
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  // One element more than needed, because an empty array has no address.
  const auto addresses = std::apply(
      [](auto&... value) { return std::array<void*, sizeof...(Parameters) + 1>{static_cast<void*>(&value)...}; },
      values);
  check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks, threads, const_cast<void**>(addresses.data()),
                         shared_bytes, on.stream),
        "a kernel launch", on.place);
}

// The dynamic shared memory of the running block, 16-byte aligned. The address is the same for every T.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char weft_dynamic_shared_memory[];
  return reinterpret_cast<T*>(weft_dynamic_shared_memory);
}

}  // namespace weft::cuda
