// A rank touches its own GPU alone: a context on another takes some hundred MiB of that one's memory in every process.
// Needs the emulator, which counts contexts.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "parallel/comm/nccl/nccl_watch.h"
#include "parallel/runtime/cuda/device.h"
#include "tests/cuda_emulator/machine.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"

namespace weft {
namespace {

using cuda_emulator::Machine;

class DeviceContexts : public ::testing::Test {
 protected:
  void SetUp() override { Machine::instance().configure({.devices = 3}); }
  void TearDown() override { Machine::instance().configure({}); }
};

TEST_F(DeviceContexts, QuestionsBeforeARunMakeNone) {
  EXPECT_EQ(cuda_memory(), std::int64_t{8} << 30);
  EXPECT_EQ(cuda_card(), "emulated device 0");
  EXPECT_EQ(cuda_devices(), 3);
  EXPECT_EQ(Machine::instance().contexts(), std::vector<int>());
}

// In threads of their own: an earlier test may have chosen this thread's device.
TEST_F(DeviceContexts, ARunMakesOneOnItsOwnGpu) {
  const TemporaryFolder folder;
  Config config = saving_config({.layers = "d e"}, folder / "run", 2, 1);
  config.run.device = DeviceKind::cuda;
  std::thread([&] { run_steps(config, {}, [](int) { return make_cuda_backend(2); }); }).join();
  EXPECT_EQ(Machine::instance().contexts(), std::vector<int>{2});
}

TEST_F(DeviceContexts, AWatchOfCallsMakesNoOther) {
  std::thread([] {
    const auto device = cuda::make_device(1);
    const auto stream = device->create_stream("world");
    NcclWatch watch(*device, std::chrono::milliseconds(40));
    const NcclMembers members{"world", 0, {0, 1}};
    watch.queued({&members, "a call"}, stream->record());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    watch.forget(members);
  }).join();
  EXPECT_EQ(Machine::instance().contexts(), std::vector<int>{1});
}

}  // namespace
}  // namespace weft
