// The device of a rank: memory, and streams that queue work. The CPU device executes work immediately, so its streams
// order nothing. Callers still name the stream and the work to wait for, because other devices run behind the host.
//
// The rule of every stream: host code never reads or writes device memory. Host code queues work, or moves data through
// staging memory and waits (staging.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "parallel/runtime/elementwise.h"

namespace weft {

class Device;

// A point in the work of a stream. Any thread may wait for it.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the host until the point has been reached.
  virtual void synchronize() const = 0;
  virtual bool reached() const = 0;
  // Seconds from `earlier` to this point. Both events come from record_time() of the same device and have been reached.
  virtual double seconds_since(const Event& earlier) const = 0;
};
// Null if there is nothing to wait for (on the CPU).
using Fence = std::shared_ptr<const Event>;

// An in-order queue of work of one rank. Only one thread queues work.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() = 0;
  virtual Fence record() = 0;
  // As record(), with the time at which the point is reached; never null.
  virtual Fence record_time() = 0;
  // Work queued after this call starts only once the fence has been reached.
  virtual void wait(const Fence& fence) = 0;
  // Blocks the host until everything queued so far is done. Throws Error (failure) if the device failed.
  virtual void synchronize() = 0;
  // Work between these calls is the same at each call with `key`, except for addresses: a device may take it in one
  // piece. Any other call of the stream ends the region, too.
  virtual void begin_capture(std::int64_t key) { static_cast<void>(key); }
  virtual void end_capture() {}
  // Work queued here from now on starts after everything queued on `other` so far.
  void wait_for(Stream& other) {
    if (&other != this) wait(other.record());
  }
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::unique_ptr<Stream> create_stream(std::string_view lane) = 0;

  // Storage for work queued on `stream` from here on; other streams first wait for this point of `stream`. At least
  // 64-byte aligned, contents undefined. Throws Error (failure) if there is no room. Called by the ledger, and by
  // the NCCL backend for its scratch.
  virtual void* allocate(std::int64_t bytes, Stream& stream) = 0;
  // The storage may be reused after the work queued on `stream` so far. `stream` has already waited for uses on other
  // streams. `bytes` as allocated. Does not throw: other calls report a failed device.
  virtual void release(void* data, std::int64_t bytes, Stream& stream) = 0;
  // Number of memory requests to the system.
  virtual std::int64_t system_allocations() const = 0;

  // Host memory that queued copies read and write while the host continues. Kept for reuse.
  virtual void* allocate_staging(std::int64_t bytes) = 0;
  virtual void release_staging(void* data, std::int64_t bytes) = 0;
  // Host memory for the whole run, which queued copies and kernels read and write, never host code.
  virtual void* allocate_host(std::int64_t bytes) { return allocate_staging(bytes); }
  virtual void release_host(void* data, std::int64_t bytes) { release_staging(data, bytes); }
  // Queues a copy between any two of device, staging and host memory.
  virtual void copy(Stream& stream, const void* from, void* to, std::int64_t bytes) = 0;

  virtual const ElementwiseKernels& elementwise() const = 0;

  // Before it waits for events of this device, a thread that did not make the device calls this.
  virtual void make_current() {}

  // Start and stop the recording of this process by a profiler that waits for these calls.
  virtual void start_profiler() {}
  virtual void stop_profiler() {}
};

// Blocks that were given back, for later requests of the same size: those of a step repeat.
class FreeBlocks {
 public:
  // Null if there is none.
  void* take(std::int64_t bytes) {
    std::vector<void*>& blocks = by_bytes_[bytes];
    if (blocks.empty()) return nullptr;
    void* const data = blocks.back();
    blocks.pop_back();
    return data;
  }
  void put(void* data, std::int64_t bytes) { by_bytes_[bytes].push_back(data); }
  template <typename Release>
  void release_all(Release release) const {
    for (const auto& [bytes, blocks] : by_bytes_) std::ranges::for_each(blocks, release);
  }

 private:
  std::unordered_map<std::int64_t, std::vector<void*>> by_bytes_;
};

// A stream of a device that does work when it is queued.
class ImmediateStream final : public Stream {
 public:
  explicit ImmediateStream(Device& device) : device_(device) {}
  Device& device() override { return device_; }
  Fence record() override { return nullptr; }
  Fence record_time() override;  // by the host's clock (cpu/device.cpp)
  void wait(const Fence&) override {}
  void synchronize() override {}

 private:
  Device& device_;
};

std::unique_ptr<Device> make_cpu_device();

}  // namespace weft
