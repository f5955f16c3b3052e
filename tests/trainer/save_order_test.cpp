// The rows of a save are not changed before they have been copied. The lane that updates parameters waits for the lane
// that copies them, on a device that may run either late.
#include <gtest/gtest.h>

#include <set>

#include "tests/parallel/forwarding_device.h"
#include "tests/trainer/backend_on.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"

namespace weft {
namespace {

class Copied final : public Event {
 public:
  void synchronize() const override {}
  bool reached() const override { return true; }
  double seconds_since(const Event&) const override { return 0.0; }
};

// Fences of the lane that copies, and those that compute waited for.
struct Fences {
  std::vector<Fence> recorded;
  std::set<Fence> waited_for;
};

class WatchedStream final : public Stream {
 public:
  WatchedStream(Device& device, Fences& fences, std::string_view lane)
      : device_(device), fences_(fences), lane_(lane) {}
  Device& device() override { return device_; }
  Fence record() override {
    if (lane_ != "checkpoint") return nullptr;
    return fences_.recorded.emplace_back(std::make_shared<Copied>());
  }
  Fence record_time() override { return std::make_shared<Copied>(); }
  void wait(const Fence& fence) override {
    if (lane_ == "compute" && fence != nullptr) fences_.waited_for.insert(fence);
  }
  void synchronize() override {}

 private:
  Device& device_;
  Fences& fences_;
  const std::string lane_;
};

class WatchedDevice final : public ForwardingDevice {
 public:
  explicit WatchedDevice(Fences& fences) : fences_(fences) {}
  std::unique_ptr<Stream> create_stream(std::string_view lane) override {
    return std::make_unique<WatchedStream>(*this, fences_, lane);
  }

 private:
  Fences& fences_;
};

TEST(SaveOrder, TheUpdateWaitsForTheCopies) {
  const TemporaryFolder folder;
  Fences fences;
  run_steps(saving_config({.layers = "d e"}, folder / "a", 4, 1), {},
            [&](int) { return backend_on<WatchedDevice>(fences); });
  ASSERT_EQ(fences.recorded.size(), 4u) << "one a save";
  // The last has no step behind it.
  EXPECT_EQ(fences.waited_for, std::set<Fence>(fences.recorded.begin(), fences.recorded.end() - 1));
}

}  // namespace
}  // namespace weft
