// Training with gathers into memory that NCCL knows (run.registered_buffers). The tests say where it lies, how often
// it is registered, that nothing of it stays, and that no bit changes. Needs the NCCL of the emulator, which counts.
#include <gtest/gtest.h>

#include <mutex>
#include <optional>

#include "cuda_emulator/fake_nccl.h"
#include "parallel/comm/nccl/nccl_buffers.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/cuda_emulator/machine.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

using cuda_emulator::FakeNccl;
using cuda_emulator::Machine;

struct Outcome {
  LearnedRun learned;
  std::vector<std::string> errors;  // of each rank
  std::map<std::string, std::int64_t> calls_of_first_step;
};

// As run_process_rank does it, but with ranks that are threads. `after_step` may throw.
Outcome train_over_nccl(Config config, bool registered,
                        const std::function<void(const RankRun&, std::int64_t step)>& after_step = {},
                        std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000)) {
  config.run.device = DeviceKind::cuda;
  config.run.launch = LaunchKind::processes;
  config.run.registered_buffers = registered;
  config.run.steps = 3;
  const int world_size = config.parallelism.world();
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  NvtxDomain domain;
  ThreadRendezvous rendezvous(world_size, timeout);
  Outcome outcome;
  outcome.errors.resize(static_cast<std::size_t>(world_size));
  std::mutex mutex;
  WeightCollector collector;
  const auto run_rank = [&](int rank) {
    const auto backend = make_cuda_backend(0);
    const auto stream = backend->device->create_stream("world");
    CommunicationCounters counters;
    PhaseClock clock;
    NcclWatch watch(*backend->device, timeout);
    NcclOptions options;
    std::optional<NcclBuffers> buffers;
    if (registered) options.buffers = &buffers.emplace(*backend->device, std::string(name_of(Lane::gather)));
    ThreadRendezvous::Place place(rendezvous, rank);
    const auto world =
        make_nccl_world({rank, world_size, rank, world_size}, place, *stream, options, watch, counters, clock);
    RankRun run(resolved, data, domain, {*backend, *world});
    for (std::int64_t step = 1; step <= config.run.steps; ++step) {
      const StepMetrics metrics = run.step(step);
      if (after_step) after_step(run, step);
      const std::lock_guard lock(mutex);
      if (step == config.run.steps) collector.add(run.stream(), run.stages());
      if (rank != 0) continue;
      // Every rank has queued its gathers of this step, for rank 0 has the totals.
      if (step == 1) outcome.calls_of_first_step = FakeNccl::calls();
      outcome.learned.losses.push_back(metrics.loss);
      outcome.learned.gradient_norms.push_back(metrics.gradient_norm);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run_rank(rank);
      } catch (const std::exception& error) {
        outcome.errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  collector.finish(outcome.learned);
  return outcome;
}

class NcclBuffersTest : public testing::Test {
 protected:
  void SetUp() override { begin_anew(); }
  void TearDown() override {
    EXPECT_TRUE(Machine::instance().reports().empty());
    begin_anew();
  }
  static void begin_anew() {
    Machine::instance().configure({});
    FakeNccl::reset();
  }
  static void expect_nothing_left() {
    EXPECT_EQ(FakeNccl::alive(), 0);
    EXPECT_EQ(FakeNccl::registrations(), 0);
    EXPECT_EQ(FakeNccl::memory_blocks(), 0);
  }

  // Experts and the rest are gathered in different groups, and again for every use.
  const Config config =
      config_of({.layers = "d e d e", .degrees = {1, 1, 4, 1, 1, 2, 1}, .residency = "reshard_after_use"});
};

TEST_F(NcclBuffersTest, EveryGatherGoesToMemoryRegisteredOnceAndTakenBackAtTheEnd) {
  const Outcome plain = train_over_nccl(config, false);
  for (const std::string& error : plain.errors) ASSERT_EQ(error, "");
  const auto plainly = FakeNccl::gathers();
  EXPECT_FALSE(FakeNccl::calls().contains("ncclMemAlloc"));
  begin_anew();

  const Outcome registered = train_over_nccl(config, true);
  for (const std::string& error : registered.errors) ASSERT_EQ(error, "");
  const auto gathers = FakeNccl::gathers();
  for (const char* group : {"dp_shard", "edp_shard"}) {
    EXPECT_GT(plainly.at(group).unregistered, 0) << group;
    EXPECT_EQ(plainly.at(group).registered, 0) << group;
    EXPECT_EQ(gathers.at(group).unregistered, 0) << group;
    EXPECT_EQ(gathers.at(group).registered, plainly.at(group).unregistered) << group;
  }
  // Nothing else is: the world gathers a few numbers at the start.
  EXPECT_EQ(gathers.at("world").registered, 0);

  // From the second step on blocks and their registrations are there.
  const auto calls = FakeNccl::calls();
  for (const char* function : {"ncclMemAlloc", "ncclCommRegister"}) {
    EXPECT_GT(calls.at(function), 0) << function;
    EXPECT_EQ(calls.at(function), registered.calls_of_first_step.at(function)) << function;
  }
  // The emulator refuses to finalise a communicator with which memory is registered, which would then be aborted. It
  // also refuses to take memory back that a call still uses.
  EXPECT_EQ(calls.at("ncclCommDeregister"), calls.at("ncclCommRegister"));
  EXPECT_EQ(calls.at("ncclMemFree"), calls.at("ncclMemAlloc"));
  EXPECT_FALSE(calls.contains("ncclCommAbort"));
  expect_nothing_left();

  const RunDifference apart = difference(registered.learned, plain.learned);
  EXPECT_TRUE(registered.learned.faults.empty());
  EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
}

TEST_F(NcclBuffersTest, ARankThatFailsLeavesNothing) {
  const Outcome outcome = train_over_nccl(config, true, [](const RankRun& run, std::int64_t) {
    if (run.rank() == 0) FakeNccl::set_asynchronous_error(1, ncclRemoteError);
    fail("out of luck");
  });
  for (const std::string& error : outcome.errors) EXPECT_NE(error, "");
  expect_nothing_left();
}

TEST_F(NcclBuffersTest, ARefusedRegistrationIsToldWithItsGather) {
  FakeNccl::fail_next("ncclCommRegister", ncclSystemError);
  const Outcome outcome = train_over_nccl(config, true, {}, std::chrono::milliseconds(8'000));
  int told = 0;
  for (const std::string& error : outcome.errors) {
    EXPECT_NE(error, "");
    told += error.find("all_gather of ") != std::string::npos &&
                    error.find("unhandled system error: as the test asked") != std::string::npos
                ? 1
                : 0;
  }
  EXPECT_EQ(told, 1);
  expect_nothing_left();
}

// A communicator may go while its last gather has not even begun.
TEST_F(NcclBuffersTest, MemoryIsTakenBackOnlyWhenGathersAreDone) {
  const auto errors = run_nccl_ranks(
      2,
      [](NcclRank& self) {
        auto group = self.world.split(0, self.world.rank(), "dp_shard");
        void* memory = self.device.allocate(64, self.stream);
        const TensorView whole(memory, DType::float32, 16, 1);
        group->all_gather(whole.rows_from(8 * self.world.rank(), 8), whole);
        group.reset();
        self.device.release(memory, 64, self.stream);
      },
      std::chrono::milliseconds(60'000), {}, "compute");
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(FakeNccl::gathers().at("dp_shard").registered, 2);
  EXPECT_EQ(FakeNccl::calls().at("ncclCommDeregister"), FakeNccl::calls().at("ncclCommRegister"));
  EXPECT_FALSE(FakeNccl::calls().contains("ncclCommAbort"));
  expect_nothing_left();
}

// Blocks go to whoever asks for as many bytes, and to nobody else.
TEST_F(NcclBuffersTest, ABlockServesOneSizeAgainAndAgain) {
  const auto device = cuda::make_device(0);
  {
    NcclBuffers buffers(*device, "gather");
    const auto gather = device->create_stream("gather"), compute = device->create_stream("compute");
    const std::int64_t before = device->system_allocations();
    void* large = device->allocate(4096, *gather);
    void* small = device->allocate(128, *gather);
    EXPECT_EQ(device->system_allocations(), before + 2);
    EXPECT_EQ(FakeNccl::memory_blocks(), 2);
    device->release(large, 4096, *gather);
    void* other = device->allocate(2048, *gather);
    EXPECT_NE(other, large);
    EXPECT_EQ(device->allocate(4096, *gather), large);
    EXPECT_EQ(FakeNccl::memory_blocks(), 3);

    const auto block = buffers.block_of(static_cast<std::byte*>(small) + 127);
    ASSERT_TRUE(block);
    EXPECT_EQ(block->data, small);
    EXPECT_EQ(block->bytes, 128u);
    void* elsewhere = device->allocate(4096, *compute);
    EXPECT_FALSE(buffers.block_of(elsewhere));
    EXPECT_EQ(FakeNccl::memory_blocks(), 3);
    device->release(elsewhere, 4096, *compute);

    // A device that is full says so in the same words, whatever the memory is for.
    try {
      device->allocate(std::int64_t{1} << 40, *gather);
      ADD_FAILURE() << "was given";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the GPU refused 1099511627776 bytes"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(FakeNccl::memory_blocks(), 0);
}

}  // namespace
}  // namespace weft
