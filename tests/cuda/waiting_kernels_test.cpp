// Kernels that wait for another rank, as NCCL's do, and what goes on beside them. If a stream or a call of CUDA waited
// for such a kernel to end, schedules of several stages would stand still. One GPU is enough to see it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/lane.h"
#include "tests/cuda/delay.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// As in the program (tools/main.cpp).
const int hardware_queues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

// A kernel that has waited for so long gives up, so that no test stands still.
constexpr double patience = 1.0;

class WaitingKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = cuda::why_no_device()) GTEST_SKIP() << "needs a GPU: " << *reason;
    device_ = cuda::make_device(0);
    WEFT_CUDA_CHECK(cudaMallocHost(&flag_, sizeof *flag_));
    // Kernels are loaded here, not while another waits.
    const auto stream = device_->create_stream("compute");
    raise(*stream, flag_);
    await(*stream, flag_, patience);
    stream->synchronize();
  }
  void TearDown() override {
    if (flag_ != nullptr) cudaFreeHost(flag_);
  }

  void lower() { *static_cast<volatile int*>(flag_) = 0; }
  bool raised() const { return *static_cast<const volatile int*>(flag_) != 0; }
  // Whether the device raises the flag before the kernels that wait for it give up.
  bool raised_in_time() const {
    for (const auto begin = Clock::now(); Clock::now() - begin < std::chrono::duration<double>(0.8 * patience);) {
      if (raised()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return false;
  }
  // The streams of a rank, and `further` ones of NCCL, checkpoints and sends.
  std::vector<std::unique_ptr<Stream>> streams(int further) {
    std::vector<std::unique_ptr<Stream>> all;
    for (const Lane lane : all_lanes) all.push_back(device_->create_stream(name_of(lane)));
    for (int i = 0; i < 4; ++i) all.push_back(device_->create_stream("products"));
    for (int i = 0; i < further; ++i) all.push_back(device_->create_stream("send"));
    return all;
  }
  // The first stream whose kernel does not run while all others wait, or -1.
  int first_held_up(int further) {
    const auto all = streams(further);
    int held = -1;
    for (std::size_t free = 0; free < all.size() && held < 0; ++free) {
      lower();
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (i != free) await(*all[i], flag_, patience, nullptr, 1);
      }
      raise(*all[free], flag_);
      if (!raised_in_time()) held = static_cast<int>(free);
      for (const auto& stream : all) stream->synchronize();
    }
    return held;
  }

  std::unique_ptr<Device> device_;
  int* flag_ = nullptr;
};

// Each kernel that waits has one block, so that all have room. A rank has 14 lanes, four streams of products, one each
// of releases, world and checkpoints, and one for each of four communicators that send.
TEST_F(WaitingKernels, LeaveEveryOtherStreamOfARankFree) {
  EXPECT_EQ(first_held_up(7), -1);
  for (const int further : {14, 22, 30, 46}) {
    const int held = first_held_up(further);
    fmt::print("{} streams: {}\n", 18 + further, held < 0 ? "each runs alone" : fmt::format("{} is held up", held));
    if (held >= 0) break;
  }
}

// NCCL_LAUNCH_ORDER_IMPLICIT has the next kernel wait for the event that tells of the begin of the one before.
TEST_F(WaitingKernels, LetTheNextInTheOrderBegin) {
  const auto first = device_->create_stream("send"), second = device_->create_stream("receive");
  cudaEvent_t begun = nullptr;
  WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
  for (int round = 0; round < 20; ++round) {
    lower();
    await(*first, flag_, patience, begun);
    WEFT_CUDA_CHECK(cudaStreamWaitEvent(cuda::native(*second), begun, 0));
    raise(*second, flag_);
    EXPECT_TRUE(raised_in_time()) << "round " << round;
    first->synchronize();
    second->synchronize();
  }
  WEFT_CUDA_CHECK(cudaEventDestroy(begun));
}

// What the host of a rank calls in a step, or before it, while a kernel waits for another rank.
TEST_F(WaitingKernels, HoldUpNoCallOfAStep) {
  const auto waiting = device_->create_stream("gather"), working = device_->create_stream("compute");
  const cudaStream_t stream = cuda::native(*working);
  constexpr std::size_t bytes = std::size_t{256} << 20;
  struct Call {
    const char* name;
    bool in_step;
    std::function<void()> call;
  };
  std::unique_ptr<Stream> created;
  cudaEvent_t event = nullptr;
  cudaGraphExec_t graph = nullptr;
  void *data = nullptr, *staging = nullptr, *plain = nullptr;
  std::vector<char> pageable(1 << 20);
  const auto captured = [&] {
    cudaGraph_t region = nullptr;
    WEFT_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    delay(*working, 1.0);
    WEFT_CUDA_CHECK(cudaStreamEndCapture(stream, &region));
    WEFT_CUDA_CHECK(cudaGraphInstantiate(&graph, region, 0));
    WEFT_CUDA_CHECK(cudaGraphDestroy(region));
  };
  const Call calls[] = {
      {"an event is made and recorded", true,
       [&] {
         WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
         WEFT_CUDA_CHECK(cudaEventRecord(event, stream));
         WEFT_CUDA_CHECK(cudaEventSynchronize(event));
       }},
      {"the pool grows", true, [&] { data = device_->allocate(bytes, *working); }},
      {"memory is copied to the device", true,
       [&] { WEFT_CUDA_CHECK(cudaMemcpyAsync(data, pageable.data(), pageable.size(), cudaMemcpyDefault, stream)); }},
      {"a block goes back to the pool", true, [&] { device_->release(data, bytes, *working); }},
      {"a graph is instantiated", true, captured},
      {"a graph is launched", true,
       [&] {
         WEFT_CUDA_CHECK(cudaGraphLaunch(graph, stream));
         working->synchronize();
       }},
      {"a stream is made", false, [&] { created = device_->create_stream("send"); }},
      {"a stream is destroyed", false, [&] { created.reset(); }},
      {"memory is pinned", false, [&] { staging = device_->allocate_staging(1 << 20); }},
      {"memory is allocated", false, [&] { WEFT_CUDA_CHECK(cudaMalloc(&plain, bytes)); }},
      {"memory is freed", false, [&] { WEFT_CUDA_CHECK(cudaFree(plain)); }},
  };
  for (const Call& call : calls) {
    lower();
    await(*waiting, flag_, patience);
    const auto begin = Clock::now();
    call.call();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    *static_cast<volatile int*>(flag_) = 1;
    waiting->synchronize();
    fmt::print("{}: {:.6f} s\n", call.name, seconds);
    if (call.in_step) {
      EXPECT_LT(seconds, 0.8 * patience) << call.name;
    }
  }
  WEFT_CUDA_CHECK(cudaGraphExecDestroy(graph));
  WEFT_CUDA_CHECK(cudaEventDestroy(event));
  if (staging != nullptr) device_->release_staging(staging, 1 << 20);
}

}  // namespace
}  // namespace weft
