// A GPU as a rank sees it. Several ranks of one process may share one, each with its own object.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "parallel/runtime/device.h"

namespace weft::cuda {

// Why no GPU can be used, or nothing: no driver, one that is too old for this build, or no device.
std::optional<std::string> why_no_device();
int device_count();

// Device `index` of this process. Its memory comes from a stream-ordered pool of its own. Throws Error (request) when
// there is no such device. Makes it the calling thread's current one: a rank's thread calls this first.
std::unique_ptr<Device> make_device(int index);

// Bytes that the pool of `device` holds at most and has handed out at most since it exists.
struct PoolUse {
  std::int64_t reserved_high = 0, used_high = 0;
};
PoolUse pool_use(Device& device);

// `check` is called after each wait of the host for a stream or event of `device`, and throws when what was waited for
// has been given up rather than done (communication whose peers are gone). Set by the rank's thread while no other
// waits; empty: nothing to check.
void check_after_waits(Device& device, std::function<void()> check);

extern const ElementwiseKernels elementwise_kernels;  // elementwise.cu

}  // namespace weft::cuda
