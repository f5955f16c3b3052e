// Peers that do not come, do something else or report errors: every rank ends, and says where. Needs the NCCL of the
// emulator, which can be told to fail.
#include <gtest/gtest.h>

#include <chrono>

#include "cuda_emulator/fake_nccl.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/cuda_emulator/machine.h"

namespace weft {
namespace {

using cuda_emulator::FakeNccl;
using std::chrono::milliseconds;

class NcclFailureTest : public testing::Test {
 protected:
  void SetUp() override {
    cuda_emulator::Machine::instance().configure({});
    FakeNccl::reset();
  }
  void TearDown() override {
    EXPECT_EQ(FakeNccl::alive(), 0);
    cuda_emulator::Machine::instance().configure({});
    FakeNccl::reset();
  }
  void run(int world, milliseconds timeout, const std::function<void(NcclRank&)>& rank_main) {
    const auto begin = std::chrono::steady_clock::now();
    errors_ = run_nccl_ranks(world, rank_main, timeout);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  void expect_says(int rank, const std::vector<std::string>& parts) const {
    const std::string& text = errors_[static_cast<std::size_t>(rank)];
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\nin rank " << rank << ": " << text;
    }
  }

  std::vector<std::string> errors_;
  double seconds_ = 0;
};

TEST_F(NcclFailureTest, APeerThatNeverComesEndsAllWithinTheTimeout) {
  run(3, milliseconds(600), [&](NcclRank& self) {
    const auto group = self.world.split(0, self.world.rank(), "dp_shard");
    self.watch.set_action("UNSHARD (e*2)");
    if (self.world.rank() == 2) {
      FakeNccl::kill(2);
      return;
    }
    const DeviceElements data(self.stream, DType::float32, std::vector<double>(16, 1.0));
    group->all_reduce(data.view());
    // Work behind the call; the host waits for it.
    self.stream.record()->synchronize();
    ADD_FAILURE() << "the wait returned";
  });
  expect_says(
      0, {"in UNSHARD (e*2)", "group dp_shard", "rank 0", "all_reduce of 64 bytes float32", "ranks 1, 2", "600 ms"});
  expect_says(1, {"in UNSHARD (e*2)", "group dp_shard", "rank 1", "ranks 0, 2"});
  EXPECT_EQ(errors_[2], "");
  EXPECT_LT(seconds_, 5.0);
}

// The rank's own refusal, not the peers that it keeps waiting.
TEST_F(NcclFailureTest, MemoryThatRunsOutBehindACallWithoutPeerIsNamed) {
  cuda_emulator::Machine::instance().configure({.total_memory = std::size_t{16} << 20});
  run(2, milliseconds(1000), [&](NcclRank& self) {
    if (self.world.rank() == 1) {
      FakeNccl::kill(1);
      return;
    }
    const DeviceElements data(self.stream, DType::float32, std::vector<double>(16, 1.0));
    self.world.all_reduce(data.view());
    static_cast<void>(self.device.allocate(std::int64_t{64} << 20, self.stream));
    ADD_FAILURE() << "there is no room";
  });
  expect_says(0, {"the GPU refused 67108864 bytes"});
  EXPECT_LT(seconds_, 5.0);
}

// Room that work under way gives back is waited for.
TEST_F(NcclFailureTest, MemoryBehindACallThatEndsIsWaitedFor) {
  cuda_emulator::Machine::instance().configure({.total_memory = std::size_t{16} << 20});
  run(2, milliseconds(10'000), [&](NcclRank& self) {
    if (self.world.rank() == 1) std::this_thread::sleep_for(milliseconds(200));
    const DeviceElements data(self.stream, DType::float32, std::vector<double>(16, 1.0));
    constexpr std::int64_t bytes = std::int64_t{6} << 20;
    const auto lane = self.device.create_stream("gather");
    void* before = self.device.allocate(bytes, *lane);
    self.world.all_reduce(data.view());
    lane->wait_for(self.stream);
    self.device.release(before, bytes, *lane);
    void* behind = self.device.allocate(bytes, self.stream);
    self.device.release(behind, bytes, self.stream);
    self.stream.synchronize();
  });
  for (const int rank : {0, 1}) EXPECT_EQ(errors_[static_cast<std::size_t>(rank)], "");
}

TEST_F(NcclFailureTest, ARankThatThrowsDoesNotHoldTheOthersForever) {
  run(2, milliseconds(500), [&](NcclRank& self) {
    if (self.world.rank() == 1) fail("out of luck");
    self.world.barrier();
  });
  EXPECT_EQ(errors_[1], "out of luck");
  expect_says(0, {"group world", "barrier", "rank 1"});
}

// Its send waits on the device for a message of another group that never comes.
TEST_F(NcclFailureTest, ARankThatThrowsDoesNotWaitForItsOwnMessages) {
  run(2, milliseconds(20'000), [&](NcclRank& self) {
    const auto one = self.world.split(0, self.world.rank(), "one");
    const auto other = self.world.split(0, self.world.rank(), "other");
    if (self.world.rank() == 0) return;
    const DeviceElements data(self.stream, DType::bfloat16, std::vector<double>(8, 1.0));
    one->receive(data.view(), 0);
    other->send(data.view(), 0);
    fail("out of luck");
  });
  EXPECT_EQ(errors_[1], "out of luck");
  EXPECT_LT(seconds_, 5.0);
}

TEST_F(NcclFailureTest, AMessageThatNobodyReceivesIsNamed) {
  run(2, milliseconds(500), [&](NcclRank& self) {
    const auto group = self.world.split(0, self.world.rank(), "pp");
    self.watch.set_action("PP:0SEND_F");
    const DeviceElements data(self.stream, DType::bfloat16, std::vector<double>(8, 1.0));
    if (self.world.rank() == 0) {
      group->send(data.view(), 1);
      group->flush();
      self.stream.synchronize();
    } else {
      std::this_thread::sleep_for(milliseconds(100));
      group->receive(data.view(), 0);
      group->receive(data.view(), 0);
      self.stream.synchronize();
    }
  });
  // What was sent arrived; the second message never came.
  EXPECT_EQ(errors_[0], "");
  expect_says(1, {"in PP:0SEND_F", "group pp", "receive of 16 bytes bfloat16 with rank 0"});
}

// One communicator makes its calls one after another. Two ranks that each begin with a send to the other would wait for
// ever.
TEST_F(NcclFailureTest, ARankThatSendsAndReceivesOnOneCommunicatorIsRefused) {
  for (const bool sends_first : {true, false}) {
    run(2, milliseconds(500), [&](NcclRank& self) {
      const int me = self.world.rank(), peer = 1 - me;
      const auto group = self.world.split(0, me, "pp");
      const DeviceElements sent(self.stream, DType::float32, std::vector<double>(4, 1.0 + me));
      const DeviceElements received(self.stream, DType::float32, std::int64_t{4});
      if (sends_first) group->send(sent.view(), peer);
      group->receive(received.view(), peer);
      group->send(sent.view(), peer);
    });
    for (const int rank : {0, 1}) {
      expect_says(rank, {sends_first ? "receives on another" : "a rank that receives on a communicator of NCCL"});
    }
  }
}

TEST_F(NcclFailureTest, CallsThatDoNotFitTogetherEndAll) {
  run(2, milliseconds(20'000), [&](NcclRank& self) {
    const DeviceElements data(self.stream, DType::float32, std::vector<double>(8, 1.0));
    self.world.all_reduce(data.part(0, self.world.rank() == 0 ? 8 : 4));
    self.stream.synchronize();
  });
  for (const int rank : {0, 1}) expect_says(rank, {"group world", "all_reduce", "do not fit together"});
  EXPECT_LT(seconds_, 10.0);
}

TEST_F(NcclFailureTest, AnAsynchronousErrorEndsTheWait) {
  run(2, milliseconds(20'000), [&](NcclRank& self) {
    const DeviceElements data(self.stream, DType::float32, std::vector<double>(8, 1.0));
    if (self.world.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(200));
      FakeNccl::set_asynchronous_error(0, ncclRemoteError);
      FakeNccl::set_asynchronous_error(1, ncclRemoteError);
      return;
    }
    self.world.all_reduce(data.view());
    self.stream.synchronize();
  });
  expect_says(0, {"group world", "all_reduce of 32 bytes", "remote process exited"});
  EXPECT_LT(seconds_, 10.0);
}

// An error that a communicator reports while no call of its own is under way. In one case nothing is queued at all, in
// the other it comes behind a call of another group.
TEST_F(NcclFailureTest, AnAsynchronousErrorBetweenCallsNamesGroupAndAction) {
  for (const bool busy_elsewhere : {false, true}) {
    FakeNccl::reset();
    run(2, milliseconds(3'000), [&](NcclRank& self) {
      const auto shard = self.world.split(0, self.world.rank(), "dp_shard");
      const auto tensor = self.world.split(0, self.world.rank(), "tp");
      const DeviceElements data(self.stream, DType::float32, std::vector<double>(8, 1.0));
      self.watch.set_action(std::string("UNSHARD (d*2)"));
      shard->all_reduce(data.view());
      self.stream.synchronize();
      // The peer waits until its timeout, so that rank 0 ends first.
      if (self.world.rank() == 1) return self.world.barrier();
      if (busy_elsewhere) tensor->all_reduce(data.view());
      self.watch.set_action(std::string("a name that goes before the message is made"));
      self.watch.set_action(std::string("0F3 attention"));
      FakeNccl::set_asynchronous_error(0, ncclRemoteError, "dp_shard");
      for (int polls = 0; polls < 1000; ++polls) {
        self.watch.check();
        std::this_thread::sleep_for(milliseconds(10));
      }
    });
    expect_says(0,
                {"in 0F3 attention: group dp_shard: rank 0: communication with rank 1 failed: remote process exited"});
    EXPECT_NE(errors_[1], "");
    EXPECT_LT(seconds_, 10.0);
  }
}

TEST_F(NcclFailureTest, TheSetupFailsInWords) {
  FakeNccl::fail_next("ncclGetUniqueId", ncclSystemError);
  run(2, milliseconds(300), [](NcclRank&) { ADD_FAILURE() << "a world without an id"; });
  expect_says(0, {"rank 0", "unique id", "unhandled system error"});
  expect_says(1, {"did not come"});

  FakeNccl::reset();
  FakeNccl::fail_next("ncclCommInitRankConfig", ncclInvalidUsage, 1);
  run(2, milliseconds(400), [](NcclRank&) { ADD_FAILURE() << "a world of one"; });
  const bool first = errors_[0].find("invalid usage") != std::string::npos;
  expect_says(first ? 0 : 1, {"group world", "NCCL cannot be set up", "as the test asked"});
  expect_says(first ? 1 : 0, {"group world", "setup of NCCL", "400 ms", "peers did not come"});
}

TEST_F(NcclFailureTest, ASplitWithoutAllEndsInWords) {
  run(3, milliseconds(400), [&](NcclRank& self) {
    if (self.world.rank() == 1) return;
    const auto group = self.world.split(0, 0, "tp");
  });
  expect_says(0, {"group world", "with ranks 1, 2"});
  expect_says(2, {"group world", "with ranks 0, 1"});
}

TEST_F(NcclFailureTest, NamesOfASplitMustAgree) {
  run(2, milliseconds(5000), [&](NcclRank& self) { self.world.split(0, 0, self.world.rank() == 0 ? "tp" : "dp"); });
  for (const int rank : {0, 1}) expect_says(rank, {"group world", "different names"});
}

TEST_F(NcclFailureTest, NothingIsLeftWhenAllGoesWell) {
  run(3, milliseconds(20'000), [&](NcclRank& self) {
    const auto group = self.world.split(self.world.rank() / 2, 0, "tp");
    const DeviceElements data(self.stream, DType::float32, std::vector<double>(8, 1.0));
    for (int i = 0; i < 200; ++i) group->all_reduce(data.view());
    self.stream.synchronize();
  });
  for (const std::string& error : errors_) EXPECT_EQ(error, "");
  const auto calls = FakeNccl::calls();
  EXPECT_FALSE(calls.contains("ncclCommAbort"));
  EXPECT_EQ(calls.at("ncclCommDestroy"), 3 + 2);  // the world's, and those of the group of two
  EXPECT_EQ(cuda_emulator::Machine::instance().run_all(), 0);
  EXPECT_TRUE(cuda_emulator::Machine::instance().reports().empty());
}

}  // namespace
}  // namespace weft
