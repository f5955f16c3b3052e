// Memory that bites: host access, use after free, red zones, limits, copies that do not fit.
#include <cmath>
#include <cstdint>

#include "fixture.h"
#include "kernels.h"
#include "parallel/runtime/error.h"

namespace weft::cuda_emulator {
namespace {

using Memory = EmulatorTest;
using MemoryDeathTest = EmulatorTest;

TEST_F(MemoryDeathTest, TheHostMustNotTouchDeviceMemory) {
  float* x = upload(std::vector<float>(16));
  EXPECT_DEATH(
      {
        volatile float value = x[3];
        static_cast<void>(value);
      },
      "host code touched device memory at 0x");
  cuda::affine(make_stream(), x, x, 16, 1.0f, 1.0f);
  WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_DEATH(x[0] = 1.0f, "host code touched device memory");
}

TEST_F(Memory, FreshAndFreedMemoryIsNotANumber) {
  const cudaStream_t stream = make_stream();
  void* fresh = nullptr;
  WEFT_CUDA_CHECK(cudaMallocAsync(&fresh, 16 * sizeof(float), stream));
  float* copy = upload(std::vector<float>(16));
  cuda::affine(stream, static_cast<float*>(fresh), copy, 16, 1.0f, 0.0f);
  for (const float value : download(stream, copy, 16)) EXPECT_TRUE(std::isnan(value));

  WEFT_CUDA_CHECK(cudaMemsetAsync(fresh, 0, 16 * sizeof(float), stream));
  WEFT_CUDA_CHECK(cudaFreeAsync(fresh, stream));
  cuda::affine(stream, static_cast<float*>(fresh), copy, 16, 1.0f, 0.0f);
  for (const float value : download(stream, copy, 16)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(Memory, AFreeOnAnotherStreamMayComeTooEarly) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    machine.configure({.seed = seed});
    const cudaStream_t worker = make_stream(), other = make_stream();
    void* block = nullptr;
    WEFT_CUDA_CHECK(cudaMallocAsync(&block, 16 * sizeof(float), worker));
    WEFT_CUDA_CHECK(cudaMemsetAsync(block, 0, 16 * sizeof(float), worker));
    WEFT_CUDA_CHECK(cudaStreamSynchronize(worker));
    float* copy = upload(std::vector<float>(16));
    cuda::affine(worker, static_cast<float*>(block), copy, 16, 1.0f, 0.0f);
    WEFT_CUDA_CHECK(cudaFreeAsync(block, other));
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());
    wrong += std::isnan(download(worker, copy, 16)[0]);
  }
  EXPECT_GT(wrong, 5);
  EXPECT_LT(wrong, 45);
}

TEST_F(Memory, WritingBehindABlockIsReportedWhenItIsFreed) {
  const cudaStream_t stream = make_stream();
  void* block = nullptr;
  WEFT_CUDA_CHECK(cudaMallocAsync(&block, 40, stream));
  cuda::write_behind(stream, static_cast<float*>(block), 9);
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_TRUE(machine.check_red_zones());
  cuda::write_behind(stream, static_cast<float*>(block), 10);
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_FALSE(machine.check_red_zones());
  WEFT_CUDA_CHECK(cudaFreeAsync(block, stream));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_TRUE(reported("wrote behind a block of 40 bytes"));
}

TEST_F(Memory, TheDeviceHasAnEnd) {
  machine.configure({.total_memory = std::size_t{64} << 20});
  const cudaStream_t stream = make_stream();
  void *first = nullptr, *second = nullptr;
  WEFT_CUDA_CHECK(cudaMallocAsync(&first, std::size_t{40} << 20, stream));
  EXPECT_EQ(cudaMallocAsync(&second, std::size_t{40} << 20, stream), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&second, std::size_t{40} << 20), cudaErrorMemoryAllocation);
  try {
    WEFT_CUDA_CHECK(cudaMalloc(&second, std::size_t{40} << 20));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("out of memory (cudaErrorMemoryAllocation)"), std::string::npos);
  }
  // What is freed counts as free for what the host asks next.
  WEFT_CUDA_CHECK(cudaFreeAsync(first, stream));
  WEFT_CUDA_CHECK(cudaMallocAsync(&second, std::size_t{40} << 20, stream));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::size_t available = 0, total = 0;
  WEFT_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  EXPECT_EQ(total, std::size_t{64} << 20);
  EXPECT_EQ(available, std::size_t{24} << 20);
}

TEST_F(Memory, APoolCountsWhatItHolds) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  WEFT_CUDA_CHECK(cudaMemPoolCreate(&pool, &properties));
  std::uint64_t keep = ~std::uint64_t{0};
  WEFT_CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  const cudaStream_t stream = make_stream();
  void* block = nullptr;
  WEFT_CUDA_CHECK(cudaMallocFromPoolAsync(&block, 3 << 20, pool, stream));
  WEFT_CUDA_CHECK(cudaFreeAsync(block, stream));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  const auto attribute = [&](cudaMemPoolAttr name) {
    std::uint64_t value = 0;
    WEFT_CUDA_CHECK(cudaMemPoolGetAttribute(pool, name, &value));
    return value;
  };
  EXPECT_EQ(attribute(cudaMemPoolAttrUsedMemCurrent), 0u);
  EXPECT_EQ(attribute(cudaMemPoolAttrUsedMemHigh), 3u << 20);
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), 4u << 20);
  WEFT_CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), 0u);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaErrorInvalidValue);
}

TEST_F(Memory, CopiesAreCheckedAndDeferred) {
  const cudaStream_t stream = make_stream();
  float* x = upload(std::vector<float>{1, 2, 3, 4});
  std::vector<float> host(8);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), x, 20, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), x, 16, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(x + 1), cudaErrorInvalidValue);
  void* pinned = nullptr;
  WEFT_CUDA_CHECK(cudaMallocHost(&pinned, 16));
  WEFT_CUDA_CHECK(cudaMemcpyAsync(pinned, x, 16, cudaMemcpyDeviceToHost, stream));
  EXPECT_TRUE(std::isnan(static_cast<float*>(pinned)[0]));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  EXPECT_EQ(static_cast<float*>(pinned)[3], 4.0f);
  const auto pageable = machine.counters().pageable_copies;
  // A 2 x 2 matrix into the left half of a 2 x 4 one.
  WEFT_CUDA_CHECK(cudaMemcpy2DAsync(host.data(), 16, x, 8, 8, 2, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(host, (std::vector<float>{1, 2, 0, 0, 3, 4, 0, 0}));
  EXPECT_EQ(machine.counters().pageable_copies, pageable + 1);
  WEFT_CUDA_CHECK(cudaFreeHost(pinned));
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace weft::cuda_emulator
