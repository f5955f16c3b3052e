// Threads, barriers, warps and shared memory of emulated kernels.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "fixture.h"
#include "kernels.h"
#include "parallel/runtime/error.h"

namespace weft::cuda_emulator {
namespace {

using Kernels = EmulatorTest;

TEST_F(Kernels, EveryThreadOfAGridRunsOnce) {
  std::vector<float> x(1000);
  std::iota(x.begin(), x.end(), 0.0f);
  const cudaStream_t stream = make_stream();
  float* device = upload(x);
  cuda::affine(stream, device, device, 1000, 2.0f, 1.0f);
  const auto y = download(stream, device, x.size());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], 2.0f * x[i] + 1.0f);
  int* counter = upload(std::vector<int>{0});
  float* sum = upload(std::vector<float>{0});
  cuda::count(stream, 77, 96, counter, sum);
  EXPECT_EQ(download(stream, counter, 1)[0], 77 * 96);
  EXPECT_EQ(download(stream, sum, 1)[0], 77 * 48.0f);
}

TEST_F(Kernels, AnEmptyGridQueuesNothing) {
  cuda::affine(make_stream(), nullptr, nullptr, 0, 1.0f, 1.0f);
  EXPECT_EQ(machine.counters().kernels, 0);
}

TEST_F(Kernels, SumsRowsByShufflesAndABarrier) {
  constexpr int rows = 9, columns = 333;
  std::vector<float> x(rows * columns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17);
  const cudaStream_t stream = make_stream();
  float* sums = upload(std::vector<float>(rows));
  float* device = upload(x);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    machine.set_order(Order::random, seed);
    cuda::row_sum(stream, device, sums, rows, columns);
    const auto found = download(stream, sums, rows);
    for (std::size_t row = 0; row < rows; ++row) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(row * columns);
      EXPECT_EQ(found[row], std::accumulate(begin, begin + columns, 0.0f));  // exact: small integers
    }
  }
}

TEST_F(Kernels, CollectivesAgreeWithTheirDefinition) {
  const cudaStream_t stream = make_stream();
  int* device = upload(std::vector<int>(256));
  cuda::collectives(stream, device);
  const auto found = download(stream, device, 256);
  for (int lane = 0; lane < 32; ++lane) {
    const int* mine = found.data() + lane * 8;
    EXPECT_EQ(mine[0], 50);
    EXPECT_EQ(mine[1], lane < 3 ? lane : lane - 3);
    EXPECT_EQ(mine[2], lane % 8 + 3 > 7 ? lane : lane + 3);
    EXPECT_EQ(static_cast<unsigned>(mine[3]), 0xaaaaaaaau);
    EXPECT_EQ(mine[4], 1);
    EXPECT_EQ(mine[5], 31 * 16);
    EXPECT_EQ(mine[6], -20);
    EXPECT_EQ(mine[7], lane < 16 ? 15 : 31);
  }
}

TEST_F(Kernels, AMissingBarrierComputesSomethingElse) {
  std::vector<float> x(128);
  std::iota(x.begin(), x.end(), 0.0f);
  const std::vector<float> expected(x.rbegin(), x.rend());
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    machine.configure({.seed = seed});
    const cudaStream_t stream = make_stream();
    float* with = upload(x);
    float* without = upload(x);
    cuda::reverse(stream, with, 128, true);
    cuda::reverse(stream, without, 128, false);
    EXPECT_EQ(download(stream, with, 128), expected) << "seed " << seed;
    wrong += download(stream, without, 128) != expected;
  }
  EXPECT_EQ(wrong, 20);
}

TEST_F(Kernels, UnwrittenSharedMemoryIsNotANumber) {
  const cudaStream_t stream = make_stream();
  float* device = upload(std::vector<float>(64));
  cuda::unwritten_shared(stream, device, 64);
  for (const float value : download(stream, device, 64)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(Kernels, WritingBehindSharedMemoryIsReported) {
  const cudaStream_t stream = make_stream();
  cuda::shared_overflow(stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_TRUE(reported("wrote behind its 256 bytes of dynamic shared memory"));
}

TEST_F(Kernels, ADivergentBarrierNamesKernelAndBlock) {
  const cudaStream_t stream = make_stream();
  cuda::early_return(stream, 0);
  cuda::early_return(stream, 64);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cuda::early_return(stream, 5);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_TRUE(reported("divergent barrier: 59 of 64 threads wait at __syncthreads, 5 have returned"));
  EXPECT_TRUE(reported("kernels.cu:"));
  EXPECT_TRUE(reported("block ("));
  // The fault stays, and the next machine does not remember it.
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  machine.configure({});
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(Kernels, AShuffleWithoutAllItsLanesIsReported) {
  const cudaStream_t stream = make_stream();
  float* device = upload(std::vector<float>(32));
  cuda::half_shuffle(stream, device);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_TRUE(reported("divergent warp collective"));
  EXPECT_TRUE(reported("lane 16 has returned"));
}

TEST_F(Kernels, ALaunchWithAHostPointerIsRefused) {
  std::vector<float> host(256);
  EXPECT_THROW(cuda::affine(make_stream(), host.data(), host.data(), 256, 1.0f, 0.0f), Error);
  EXPECT_TRUE(reported("pointer to host memory"));
}

TEST_F(Kernels, ManyBlocksAreCheap) {
  const cudaStream_t stream = make_stream();
  constexpr int n = 4096 * 256;
  float* device = upload(std::vector<float>(n));
  const auto begin = std::chrono::steady_clock::now();
  cuda::affine(stream, device, device, n, 1.0f, 1.0f);
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  cuda::barriers(stream, 200, 10);
  const auto middle = std::chrono::steady_clock::now();
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  const std::chrono::duration<double> flat = middle - begin, meeting = std::chrono::steady_clock::now() - middle;
  RecordProperty("microseconds_per_block", std::to_string(flat.count() / 4096 * 1e6));
  RecordProperty("microseconds_per_block_of_ten_barriers", std::to_string(meeting.count() / 200 * 1e6));
  EXPECT_LT(flat.count(), 5.0);
  EXPECT_LT(meeting.count(), 5.0);
}

}  // namespace
}  // namespace weft::cuda_emulator
