// What a rank computes on: memory, and streams that work is queued on. The CPU device executes everything at once, so
// its streams have nothing to order; callers still say which stream they mean and what must have happened before,
// because other devices run later than the host asks.
//
// The rule of every stream: host code never reads or writes device memory. It queues work, or moves data through
// staging memory and waits (staging.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "parallel/runtime/elementwise.h"

namespace weft {

class Device;

// A point in a stream's work. Any thread may wait for it.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the host until the point has been reached.
  virtual void synchronize() const = 0;
  virtual bool reached() const = 0;
  // Seconds from `earlier` to this point; both come from record_time() of the same device and have been reached.
  virtual double seconds_since(const Event& earlier) const = 0;
};
// Null where nothing needs to be waited for (the CPU).
using Fence = std::shared_ptr<const Event>;

// An in-order queue of work of one rank. Queued by one thread only.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() = 0;
  virtual Fence record() = 0;
  // The same, with the time at which it was reached; never null.
  virtual Fence record_time() = 0;
  // Work queued after this call starts only once the fence has been reached.
  virtual void wait(const Fence& fence) = 0;
  // Blocks the host until everything queued so far is done. Throws Error (failure) when the device failed.
  virtual void synchronize() = 0;
  // Work queued here from now on starts after everything queued on `other` so far.
  void wait_for(Stream& other) {
    if (&other != this) wait(other.record());
  }
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual std::unique_ptr<Stream> create_stream(std::string_view lane) = 0;

  // Storage that work on `stream` may use from here on; other streams first wait for this point of it. At least 64-byte
  // aligned, contents undefined. Throws Error (failure) when there is no room. Called by the ledger only.
  virtual void* allocate(std::int64_t bytes, Stream& stream) = 0;
  // The storage may serve others once the work queued on `stream` so far is done; uses on other streams have been
  // waited for by it. `bytes` as allocated. Does not throw: a device that has failed says so elsewhere.
  virtual void release(void* data, std::int64_t bytes, Stream& stream) = 0;
  // How often the system was asked for memory.
  virtual std::int64_t system_allocations() const = 0;

  // Host memory that queued copies can read and write while the host goes on. Kept for reuse.
  virtual void* allocate_staging(std::int64_t bytes) = 0;
  virtual void release_staging(void* data, std::int64_t bytes) = 0;
  // Queues a copy between any two of device and staging memory.
  virtual void copy(Stream& stream, const void* from, void* to, std::int64_t bytes) = 0;

  virtual const ElementwiseKernels& elementwise() const = 0;

  // Tells a profiler that waits for it to record this process from here on, and to stop.
  virtual void start_profiler() {}
  virtual void stop_profiler() {}
};

std::unique_ptr<Device> make_cpu_device();

}  // namespace weft
