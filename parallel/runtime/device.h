// What a rank computes on. The CPU device executes everything at once, so its streams and events have nothing to order;
// callers still say which stream they mean, because the CUDA device needs to know.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace weft {

class Event {
 public:
  virtual ~Event() = default;
};

// An in-order queue of work of one rank. Not shared between ranks.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual std::unique_ptr<Event> record() = 0;
  // Work queued after this call starts only once `event` has happened.
  virtual void wait(const Event& event) = 0;
  virtual void synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual std::unique_ptr<Stream> create_stream(std::string_view lane) = 0;
  // 64-byte aligned storage, contents undefined. Throws Error when the system refuses. Called by the ledger only.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* data) = 0;
};

std::unique_ptr<Device> make_cpu_device();

}  // namespace weft
