// The frame around every runtime function takes the machine's lock and remembers the error for cudaGetLastError. A
// test's injected failure and an earlier fault of device work come first.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "machine.h"
#include "state.h"

namespace weft::cuda_emulator {

// Other calls than these make a context on the thread's device, if it has none.
inline bool makes_context(std::string_view function) {
  constexpr std::string_view others[] = {"cudaGetDeviceCount",      "cudaGetDevice",          "cudaSetDevice",
                                         "cudaGetDeviceProperties", "cudaDeviceGetAttribute", "cudaDeviceGetPCIBusId",
                                         "cudaDeviceCanAccessPeer"};
  return std::ranges::find(others, function) == std::end(others);
}

inline cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error() = error;
  return error;
}

// `body(state, lock)` returns the status of the call.
template <typename Body>
cudaError_t call(const char* function, Body body) {
  State& state = Machine::instance().state();
  // A callback that calls the runtime would wait for itself; the real one forbids it as well.
  if (state.runner.load() == std::this_thread::get_id()) return remember(cudaErrorNotPermitted);
  State::Lock lock(state.mutex);
  if (const auto injection = state.injections.find(function); injection != state.injections.end()) {
    if (injection->second.passing-- == 0) {
      const cudaError_t error = injection->second.error;
      state.injections.erase(injection);
      return remember(error);
    }
  }
  if (state.config.driver < CUDART_VERSION) return remember(cudaErrorInsufficientDriver);
  if (state.config.devices == 0) return remember(cudaErrorNoDevice);
  if (state.failure != cudaSuccess) return remember(state.failure);
  if (makes_context(function)) state.contexts.insert(current_device());
  const cudaError_t error = body(state, lock);
  if (error != cudaSuccess) return remember(error);
  // Work that ran inside the call may have failed.
  return remember(state.failure);
}

}  // namespace weft::cuda_emulator
