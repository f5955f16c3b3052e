// A GPU as a rank sees it. Several ranks of one process may share one, each with its own object.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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

// Memory for one lane that is not the device's pool.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // At least 64-byte aligned; null where there is no room. Called, like release(), by the rank's thread alone.
  virtual void* allocate(std::int64_t bytes) = 0;
  // The block may be given out again at once: who gets it works on the same lane, behind what uses it now. `bytes` as
  // allocated. Does not throw.
  virtual void release(void* data, std::int64_t bytes) = 0;
  // How often the system was asked for memory.
  virtual std::int64_t system_allocations() const = 0;
};
// Streams of `device` that are made under the name `lane` from here on take their memory from `source`, which outlives
// them. Null: from the pool again.
void serve_lane(Device& device, std::string_view lane, BlockSource* source);

// `check` is called after each wait of the host for a stream or event of `device`, and throws when what was waited for
// has been given up rather than done (communication whose peers are gone). Set by the rank's thread while no other
// waits; empty: nothing to check.
void check_after_waits(Device& device, std::function<void()> check);

extern const ElementwiseKernels elementwise_kernels;  // elementwise.cu

}  // namespace weft::cuda
