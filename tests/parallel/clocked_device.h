// A device whose streams have clocks that tests turn by hand. An event is reached only once somebody has waited for it.
#pragma once

#include <memory>
#include <vector>

#include "parallel/runtime/error.h"
#include "tests/parallel/forwarding_device.h"

namespace weft {

class ClockedEvent final : public Event {
 public:
  explicit ClockedEvent(double time) : time_(time) {}
  void synchronize() const override { reached_ = true; }
  bool reached() const override { return reached_; }
  double seconds_since(const Event& earlier) const override {
    require(reached_, "an event is asked for its time once it has been reached");
    return time_ - static_cast<const ClockedEvent&>(earlier).time_;
  }

 private:
  double time_;
  mutable bool reached_ = false;
};

class ClockedStream final : public Stream {
 public:
  explicit ClockedStream(Device& device) : device_(device) {}
  double time = 0.0;
  int recorded = 0;

  Device& device() override { return device_; }
  Fence record() override { return record_time(); }
  Fence record_time() override {
    ++recorded;
    return std::make_shared<ClockedEvent>(time);
  }
  void wait(const Fence&) override {}
  void synchronize() override {}

 private:
  Device& device_;
};

class ClockedDevice final : public ForwardingDevice {
 public:
  std::unique_ptr<Stream> create_stream(std::string_view) override { return std::make_unique<ClockedStream>(*this); }
};

inline ClockedStream& clocked(Stream& stream) { return static_cast<ClockedStream&>(stream); }

}  // namespace weft
