// A GPU for one rank. Several ranks of one process may share a GPU; each rank has its own object.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/runtime/device.h"

namespace weft::cuda {

// The reason why no GPU can be used: no driver, a driver too old for this build, or no device. Nothing if one can.
std::optional<std::string> why_no_device();
int device_count();

// Device `index` of this process, with its own stream-ordered memory pool. Throws Error (request) if there is no such
// device. Makes the device current for the calling thread: a rank's thread calls this first.
std::unique_ptr<Device> make_device(int index);

// The most bytes that the pool of `device` has held, and the most that it has handed out, since its creation.
struct PoolUse {
  std::int64_t reserved_high = 0, used_high = 0;
};
PoolUse pool_use(Device& device);

// Regions (Stream::begin_capture) of compute streams that are created from here on are captured, and go to the device
// as one CUDA graph each. What a region releases is freed at its end, so the pool may hold more than the ledger.
void capture_regions(Device& device);

// Memory for one lane, in place of the device's pool.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // At least 64-byte aligned; null if there is no room. Only the rank's thread calls allocate() and release().
  virtual void* allocate(std::int64_t bytes) = 0;
  // The block may be handed out again immediately: its next user works on the same lane, after the present user.
  // `bytes` as allocated. Does not throw.
  virtual void release(void* data, std::int64_t bytes) = 0;
  // Number of memory requests to the system.
  virtual std::int64_t system_allocations() const = 0;
};
// Streams of `device` that are created under the name `lane` from here on take their memory from `source`. `source`
// outlives those streams. Null: from the pool again.
void serve_lane(Device& device, std::string_view lane, BlockSource* source);

// `check` is called after each wait of the host for a stream or event of `device`. It throws if the awaited work was
// abandoned instead of completed (communication with peers that are gone). The rank's thread sets it while no other
// thread waits. Empty: no check. Work that waits for peers may never end while the host waits for it. An allocation
// without room therefore waits `patience` at most for work under way.
inline constexpr std::chrono::duration<double> no_limit(std::numeric_limits<double>::infinity());
void check_after_waits(Device& device, std::function<void()> check, std::chrono::duration<double> patience = no_limit);

extern const ElementwiseKernels elementwise_kernels;  // elementwise.cu

// Those functions of the table that have their own files.
// sums.cu
void square_sum(Stream& stream, ConstTensorView source, TensorView sum);
void count_nonfinite(Stream& stream, ConstTensorView source, TensorView count);
// reduce_elements.cu; at most 64 inputs and 64 outputs.
void reduce_elements(Stream& stream, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                     std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs);

}  // namespace weft::cuda
