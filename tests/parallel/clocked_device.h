// A device whose streams have clocks that tests turn by hand. An event is reached only once somebody has waited for it
// or for a later one of its stream.
#pragma once

#include <algorithm>
#include <memory>

#include "parallel/runtime/error.h"
#include "tests/parallel/forwarding_device.h"

namespace weft {

class ClockedEvent final : public Event {
 public:
  // The `number`-th event of a stream, of which `reached` have been reached.
  ClockedEvent(double time, int number, std::shared_ptr<int> reached)
      : time_(time), number_(number), reached_(std::move(reached)) {}
  void synchronize() const override { *reached_ = std::max(*reached_, number_); }
  bool reached() const override { return *reached_ >= number_; }
  double seconds_since(const Event& earlier) const override {
    require(reached() && earlier.reached(), "events are asked for the time between them once they have been reached");
    return time_ - static_cast<const ClockedEvent&>(earlier).time_;
  }

 private:
  double time_;
  int number_;
  std::shared_ptr<int> reached_;
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
    return std::make_shared<ClockedEvent>(time, recorded, reached_);
  }
  void wait(const Fence&) override {}
  void synchronize() override {}

 private:
  Device& device_;
  std::shared_ptr<int> reached_ = std::make_shared<int>(0);
};

class ClockedDevice : public ForwardingDevice {
 public:
  std::unique_ptr<Stream> create_stream(std::string_view) override { return std::make_unique<ClockedStream>(*this); }
};

inline ClockedStream& clocked(Stream& stream) {
  return static_cast<ClockedStream&>(stream);
}

}  // namespace weft
