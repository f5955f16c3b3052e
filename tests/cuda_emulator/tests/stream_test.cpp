// Order of work: streams, events, host threads, meetings.
#include <cmath>
#include <cstdint>
#include <thread>

#include "fixture.h"
#include "kernels.h"

namespace weft::cuda_emulator {
namespace {

using Streams = EmulatorTest;

// Two steps on two streams, with or without the event that orders them; true when the result is right.
bool ordered_result(const std::vector<float>& zeros, bool with_event, float* x) {
  cudaStream_t first = nullptr, second = nullptr;
  WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  const int n = static_cast<int>(zeros.size());
  cuda::affine(first, x, x, n, 1.0f, 1.0f);
  if (with_event) {
    cudaEvent_t event = nullptr;
    WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    WEFT_CUDA_CHECK(cudaEventRecord(event, first));
    WEFT_CUDA_CHECK(cudaStreamWaitEvent(second, event, 0));
    WEFT_CUDA_CHECK(cudaEventDestroy(event));  // pending work keeps it
  }
  cuda::affine(second, x, x, n, 3.0f, 0.0f);
  WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<float> found(zeros.size());
  WEFT_CUDA_CHECK(cudaMemcpy(found.data(), x, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
  return found == std::vector<float>(zeros.size(), 3.0f);
}

TEST_F(Streams, OnlyAnEventOrdersTwoStreams) {
  const std::vector<float> zeros(300);
  int right_without = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    machine.configure({.seed = seed});
    EXPECT_TRUE(ordered_result(zeros, true, upload(zeros))) << "seed " << seed;
    right_without += ordered_result(zeros, false, upload(zeros));
  }
  EXPECT_GT(right_without, 5);
  EXPECT_LT(right_without, 45);
  machine.configure({.order = Order::latest_first});
  EXPECT_TRUE(ordered_result(zeros, true, upload(zeros)));
  EXPECT_FALSE(ordered_result(zeros, false, upload(zeros)));
  machine.configure({.order = Order::earliest_first});
  EXPECT_TRUE(ordered_result(zeros, false, upload(zeros)));
}

TEST_F(Streams, NothingRunsBeforeSomebodyWaits) {
  const cudaStream_t stream = make_stream();
  bool ran = false;
  WEFT_CUDA_CHECK(cudaLaunchHostFunc(
      stream, [](void* flag) { *static_cast<bool*>(flag) = true; }, &ran));
  cudaEvent_t event = nullptr;
  WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  WEFT_CUDA_CHECK(cudaEventRecord(event, stream));
  EXPECT_FALSE(ran);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_TRUE(ran);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Streams, AWaitIsForTheLastRecordAtThatTime) {
  const cudaStream_t first = make_stream(), second = make_stream();
  cudaEvent_t event = nullptr;
  WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  // Never recorded: no wait.
  WEFT_CUDA_CHECK(cudaStreamWaitEvent(second, event, 0));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(second));
  bool released = false;
  WEFT_CUDA_CHECK(cudaEventRecord(event, first));
  WEFT_CUDA_CHECK(cudaStreamWaitEvent(second, event, 0));
  ASSERT_EQ(machine.enqueue(first, {"gate", [&] { return released; }, [] {}}), cudaSuccess);
  WEFT_CUDA_CHECK(cudaEventRecord(event, first));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(second));
  EXPECT_EQ(machine.run_all(), 2);
  released = true;
  EXPECT_EQ(machine.run_all(), 0);
}

// As a pool of events does: the second record, on a stream that runs first, is not what the wait is for.
TEST_F(Streams, AWaitIsNotForALaterRecordOnAnotherStream) {
  machine.configure({.order = Order::latest_first});
  const std::vector<float> zeros(300);
  float* x = upload(zeros);
  const cudaStream_t first = make_stream(), second = make_stream(), third = make_stream();
  cudaEvent_t event = nullptr;
  WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  cuda::affine(first, x, x, 300, 1.0f, 1.0f);
  WEFT_CUDA_CHECK(cudaEventRecord(event, first));
  WEFT_CUDA_CHECK(cudaStreamWaitEvent(second, event, 0));
  cuda::affine(second, x, x, 300, 3.0f, 0.0f);
  WEFT_CUDA_CHECK(cudaEventRecord(event, third));
  WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<float> found(zeros.size());
  WEFT_CUDA_CHECK(cudaMemcpy(found.data(), x, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
  EXPECT_EQ(found, std::vector<float>(zeros.size(), 3.0f));
}

TEST_F(Streams, ARendezvousRunsOnceWhenAllHaveCome) {
  constexpr int ranks = 4, rounds = 20;
  machine.configure({.devices = ranks});
  std::vector<int> arrived(ranks), sums(ranks);
  int meetings = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      WEFT_CUDA_CHECK(cudaSetDevice(rank));
      const cudaStream_t stream = make_stream();
      const auto index = static_cast<std::size_t>(rank);
      for (int round = 0; round < rounds; ++round) {
        EXPECT_EQ(machine.enqueue(stream, {"add", {}, [&, index] { ++arrived[index]; }}), cudaSuccess);
        // All ranks have as many additions behind them, whatever the order of host threads and streams.
        const auto meet = [&, round] {
          ++meetings;
          for (const int count : arrived) EXPECT_EQ(count, round + 1);
        };
        EXPECT_EQ(machine.enqueue_rendezvous("world", ranks, rank, stream, meet), cudaSuccess);
        if (round % 3 == rank % 3) WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
      }
      WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(meetings, rounds);
}

TEST_F(Streams, CallbacksMustNotCallTheRuntime) {
  const cudaStream_t stream = make_stream();
  cudaError_t inside = cudaSuccess;
  const auto callback = [](void* result) { *static_cast<cudaError_t*>(result) = cudaDeviceSynchronize(); };
  WEFT_CUDA_CHECK(cudaLaunchHostFunc(stream, callback, &inside));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_EQ(inside, cudaErrorNotPermitted);
  static_cast<void>(cudaGetLastError());
}

TEST_F(Streams, TheLegacyStreamWaitsForBlockingStreams) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    machine.configure({.seed = seed});
    float* x = upload(std::vector<float>(64));
    cudaStream_t blocking = nullptr;
    WEFT_CUDA_CHECK(cudaStreamCreate(&blocking));
    cuda::affine(blocking, x, x, 64, 1.0f, 1.0f);
    cuda::affine(nullptr, x, x, 64, 3.0f, 0.0f);
    cuda::affine(blocking, x, x, 64, 1.0f, 2.0f);
    EXPECT_EQ(download(blocking, x, 64), std::vector<float>(64, 5.0f));
  }
}

TEST_F(Streams, FailuresAreMadeOnDemand) {
  machine.fail_next("cudaEventCreate", cudaErrorMemoryAllocation, 1);
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventCreateWithFlags(&event, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);
  machine.configure({.devices = 0});
  int devices = -1;
  EXPECT_EQ(cudaGetDeviceCount(&devices), cudaErrorNoDevice);
  EXPECT_EQ(devices, 0);
  for (const int driver : {0, CUDART_VERSION - 10}) {
    machine.configure({.driver = driver});
    int version = -1;
    EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
    EXPECT_EQ(version, driver);
    EXPECT_EQ(cudaGetDeviceCount(&devices), cudaErrorInsufficientDriver);
  }
}

}  // namespace
}  // namespace weft::cuda_emulator
