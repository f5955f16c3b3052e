// The CPU's backend on a device that a test puts in the place of the CPU's own.
#pragma once

#include <memory>
#include <utility>

#include "trainer/rank/backend.h"

namespace weft {

// The arguments are those of the device.
template <typename TestDevice, typename... Arguments>
std::unique_ptr<Backend> backend_on(Arguments&&... arguments) {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  backend->device = std::make_unique<TestDevice>(std::forward<Arguments>(arguments)...);
  return backend;
}

}  // namespace weft
