// Saves that have less host memory than they write: the same files, the same run, and no byte more than was allowed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/parallel/forwarding_device.h"
#include "tests/trainer/backend_on.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/rank_writer.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/run_plan.h"

namespace weft {
namespace {

const TinyLayout two_stages{.layers = "d e", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}};

// A stream of the CPU that says whose it is.
class OwnStream final : public Stream {
 public:
  OwnStream(Device& device, std::unique_ptr<Stream> cpu) : device_(device), cpu_(std::move(cpu)) {}
  Device& device() override { return device_; }
  Fence record() override { return cpu_->record(); }
  Fence record_time() override { return cpu_->record_time(); }
  void wait(const Fence& fence) override { cpu_->wait(fence); }
  void synchronize() override { cpu_->synchronize(); }

 private:
  Device& device_;
  std::unique_ptr<Stream> cpu_;
};

// The most bytes of staging memory at once of any rank, of allocations other than those of at most `small`.
class WatchedStaging final : public ForwardingDevice {
 public:
  WatchedStaging(std::atomic<std::int64_t>& most, std::int64_t small) : most_(most), small_(small) {}
  std::unique_ptr<Stream> create_stream(std::string_view lane) override {
    return std::make_unique<OwnStream>(*this, ForwardingDevice::create_stream(lane));
  }
  void* allocate_staging(std::int64_t bytes) override {
    if (bytes > small_) live_ += bytes;
    for (std::int64_t seen = most_; seen < live_ && !most_.compare_exchange_weak(seen, live_);) {
    }
    return ForwardingDevice::allocate_staging(bytes);
  }
  void release_staging(void* data, std::int64_t bytes) override {
    if (bytes > small_) live_ -= bytes;
    ForwardingDevice::release_staging(data, bytes);
  }

 private:
  std::atomic<std::int64_t>& most_;
  std::int64_t small_, live_ = 0;
};

TEST(CheckpointPieces, HaveTheBytesOfAWholeSave) {
  const TemporaryFolder folder;
  Config config = saving_config(two_stages, folder / "whole", 3, 1);
  const LearnedRun whole = learn(config);
  const CheckpointReader expected(folder / "whole" / "step-00000003");
  std::mt19937 random(1);
  // From a piece of a few bytes to more than a rank saves, on a disk that is slower than the run.
  for (const std::int64_t most : {97, 1000, 4096, 10'000, 30'001, 1 << 20}) {
    const std::filesystem::path directory = folder / std::to_string(most);
    config.checkpoint.directory = directory.string();
    config.checkpoint.host_memory = most;
    CheckpointSetup setup;
    setup.calls.write = [](int file, const void* data, std::size_t bytes) {
      if (bytes > 200) std::this_thread::sleep_for(std::chrono::microseconds(300));
      return ::write(file, data, bytes);
    };
    std::vector<double> losses;
    RunObserver observer;
    observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
      if (run.rank() == 0) losses.push_back(metrics.loss);
    };
    run_steps(config, observer, {}, setup);
    EXPECT_EQ(losses, whole.losses) << most;
    for (const CheckpointFolder& saved : find_checkpoints(directory)) {
      const CheckpointReader found(saved.path), same(folder / "whole" / checkpoint_name(saved.step));
      EXPECT_EQ(found.find_faults(), std::vector<std::string>{});
      EXPECT_EQ(differing_tensors(found, same), std::vector<std::string>{}) << most << ", step " << saved.step;
    }
    EXPECT_EQ(find_checkpoints(directory).size(), 3u);
  }
}

TEST(CheckpointPieces, TakeWhatThePlanSays) {
  const TemporaryFolder folder;
  constexpr std::int64_t small = 4096;  // a step's text, totals, and pieces that are read
  Config config = saving_config(two_stages, folder / "a", 2, 1);
  for (const std::int64_t most : {std::int64_t{1} << 30, std::int64_t{20'000}}) {
    config.checkpoint.host_memory = most;
    config.checkpoint.directory = (folder / std::to_string(most)).string();
    std::atomic<std::int64_t> measured = 0;
    run_steps(config, {}, [&](int) { return backend_on<WatchedStaging>(measured, small); });
    const RunPlan plan = plan_run(config, find_hardware("cpu"));
    EXPECT_EQ(measured, plan.host_bytes);
    EXPECT_LE(plan.host_bytes, most);
    EXPECT_GT(plan.saved_bytes, 20'000);
    EXPECT_EQ(plan.host_bytes == plan.saved_bytes, most > plan.saved_bytes);
  }
}

TEST(CheckpointPieces, AreWhole) {
  constexpr std::int64_t piece = std::int64_t{8} << 20;
  EXPECT_EQ(staging_bytes(100, 200), 100);
  EXPECT_EQ(staging_bytes(200, 200), 200);
  EXPECT_EQ(staging_bytes(100 * piece, 3 * piece + 5), 3 * piece);
  EXPECT_EQ(staging_bytes(100 * piece, 1000), 1000);
}

// Of two replicas one saves; the other has nothing to copy, and waits for nothing.
TEST(CheckpointPieces, AreNoneOfARankThatSavesNothing) {
  const TemporaryFolder folder;
  Config config = saving_config(
      {.layers = "d e", .degrees = {.data_replicate = 2}, .strategy = ShardStrategy::no_shard}, folder / "a", 2, 1);
  config.checkpoint.host_memory = 5000;
  run_steps(config);
  EXPECT_EQ(find_checkpoints(folder / "a").size(), 2u);
}

// A disk that fails in the midst of a save that waits for room: the run goes on, and the next save is whole.
TEST(CheckpointPieces, OfAFailedSaveHoldNothingUp) {
  const TemporaryFolder folder;
  Config config = saving_config(two_stages, folder / "a", 3, 1);
  config.checkpoint.host_memory = 2000;
  SaidLines said;
  CheckpointSetup setup = said.setup();
  std::atomic<int> count = 0;
  setup.calls.write = [&](int file, const void* data, std::size_t bytes) -> ssize_t {
    if (++count == 12) {
      errno = ENOSPC;
      return -1;
    }
    return ::write(file, data, bytes);
  };
  run_steps(config, {}, {}, setup);
  const auto there = find_checkpoints(folder / "a");
  EXPECT_EQ(there.size(), 2u) << said.all();
  EXPECT_EQ(there.front().step, 3);
  EXPECT_GE(said.count("No space left on device"), 1) << said.all();
}

}  // namespace
}  // namespace weft
