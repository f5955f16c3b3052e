// Staging memory on a device that runs behind the host: a copy happens only once somebody waits for it.
#include "parallel/runtime/staging.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "tests/parallel/cpu_rank.h"
#include "tests/parallel/forwarding_device.h"

namespace weft {
namespace {

// Queued work in order, and how much of it has run.
struct LateWork {
  std::vector<std::function<void()>> queued;
  std::size_t done = 0;
  void run_until(std::size_t end) {
    for (; done < end; ++done) queued[done]();
  }
};

class LateEvent final : public Event {
 public:
  LateEvent(LateWork& work) : work_(work), end_(work.queued.size()) {}
  void synchronize() const override { work_.run_until(end_); }
  bool reached() const override { return work_.done >= end_; }
  double seconds_since(const Event&) const override { return 0.0; }

 private:
  LateWork& work_;
  std::size_t end_;
};

class LateDevice final : public ForwardingDevice {
 public:
  void copy(Stream& stream, const void* from, void* to, std::int64_t bytes) override {
    work.queued.push_back([=, this, &stream] { ForwardingDevice::copy(stream, from, to, bytes); });
  }
  void release_staging(void* data, std::int64_t bytes) override {
    EXPECT_EQ(work.done, work.queued.size()) << "a copy under way loses its memory";
    ForwardingDevice::release_staging(data, bytes);
  }
  LateWork work;
};

class LateStream final : public Stream {
 public:
  explicit LateStream(LateDevice& device) : device_(device) {}
  Device& device() override { return device_; }
  Fence record() override { return std::make_shared<LateEvent>(device_.work); }
  Fence record_time() override { return record(); }
  void wait(const Fence&) override {}
  void synchronize() override { device_.work.run_until(device_.work.queued.size()); }

 private:
  LateDevice& device_;
};

class StagingTest : public ::testing::Test {
 protected:
  LateDevice device_;
  LateStream stream_{device_};
};

TEST_F(StagingTest, FinishWaitsForAnUpload) {
  std::vector<float> elements(6, -1.0F);
  Staging staging(device_, DType::float32, 2, 3);
  std::ranges::fill(staging.as<float>(), 4.0F);
  staging.upload(stream_, view_of(std::span(elements), 3, 2));
  EXPECT_EQ(elements, std::vector<float>(6, -1.0F));
  staging.finish();
  EXPECT_EQ(elements, std::vector<float>(6, 4.0F));
  // From here on the staging memory is the host's again.
  std::ranges::fill(staging.as<float>(), 5.0F);
  staging.finish();
  EXPECT_EQ(elements, std::vector<float>(6, 4.0F));
}

TEST_F(StagingTest, FinishWaitsForADownloadAndForNothingBehindIt) {
  std::vector<std::int32_t> elements = {3, 1, 2}, others = {7, 8, 9}, untouched(3);
  Staging staging(device_, DType::int32, 3);
  std::ranges::fill(staging.as<std::int32_t>(), -1);
  staging.download(stream_, view_of(std::span(elements), 3, 1));
  device_.copy(stream_, others.data(), untouched.data(), 3 * sizeof(std::int32_t));
  for (const std::int32_t value : staging.as<std::int32_t>()) EXPECT_EQ(value, -1);
  staging.finish();
  EXPECT_TRUE(std::ranges::equal(staging.as<std::int32_t>(), elements));
  EXPECT_EQ(untouched, std::vector<std::int32_t>(3));
  stream_.synchronize();
  EXPECT_EQ(untouched, others);
}

TEST_F(StagingTest, IsNotGivenBackWhileACopyIsUnderWay) {
  std::vector<double> elements(4);
  {
    Staging staging(device_, DType::float64, 4);
    std::ranges::fill(staging.as<double>(), 0.5);
    staging.upload(stream_, view_of(std::span(elements), 4, 1));
  }  // LateDevice::release_staging looks
  EXPECT_EQ(elements, std::vector<double>(4, 0.5));
}

TEST_F(StagingTest, WritesAndReadsWhatItIsGiven) {
  std::vector<float> source(37), destination(37, std::nanf(""));
  std::iota(source.begin(), source.end(), 1.0F);
  const TensorView view = view_of(std::span(destination), 37, 1);
  write<float>(stream_, source, view);
  EXPECT_EQ(destination, source);
  EXPECT_EQ(read<float>(stream_, view), source);
  // Nothing is a size like any other.
  write<float>(stream_, {}, view.rows_from(0, 0));
  EXPECT_TRUE(read<float>(stream_, view.rows_from(0, 0)).empty());
  EXPECT_THROW(read<double>(stream_, view), Error);
}

TEST_F(StagingTest, RefusesOtherSizesAndDtypes) {
  std::vector<float> four(4);
  std::vector<std::int32_t> integers(3);
  Staging staging(device_, DType::float32, 3);
  const TensorView longer = view_of(std::span(four), 4, 1), other = view_of(std::span(integers), 3, 1);
  EXPECT_THROW(staging.upload(stream_, longer), Error);
  EXPECT_THROW(staging.download(stream_, longer), Error);
  EXPECT_THROW(staging.upload(stream_, other), Error);
  EXPECT_THROW(staging.download(stream_, other), Error);
}

TEST(StagingOnTheCpu, CopiesAtOnce) {
  CpuRank rank;
  Tensor tensor = rank.ledger.allocate(Bucket::workspace, DType::float32, 2, 2);
  Staging staging(*rank.device, DType::float32, 4);
  std::ranges::copy(std::vector<float>{1, 2, 3, 4}, staging.as<float>().begin());
  staging.upload(rank.stream, tensor);
  EXPECT_TRUE(std::ranges::equal(tensor.as<float>(), std::vector<float>{1, 2, 3, 4}));
  tensor.as<float>()[3] = 5;
  staging.download(rank.stream, tensor);
  EXPECT_EQ(staging.as<float>()[3], 5);
}

}  // namespace
}  // namespace weft
