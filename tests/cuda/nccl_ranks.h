// Ranks of an NCCL world as threads of one process: on the emulator, where they share a device, or on as many GPUs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/nccl/nccl_buffers.h"
#include "parallel/comm/nccl/nccl_world.h"
#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/error.h"
#if __has_include("cuda_emulator/fake_nccl.h")
#include "cuda_emulator/fake_nccl.h"
#endif

namespace weft {

#if __has_include("cuda_emulator/fake_nccl.h")
inline constexpr bool emulated = true;
// Whether hosts wait for each other at their first message, as NCCL has them.
inline void connect_at_first_message(bool does) {
  cuda_emulator::FakeNccl::connect_at_first_message(does);
}
#else
inline constexpr bool emulated = false;
inline void connect_at_first_message(bool) {}  // it does
#endif

// Why this machine cannot run `world` ranks, or an empty text.
inline std::string why_no_ranks(int world) {
  if (emulated) return {};
  if (const auto reason = cuda::why_no_device()) return *reason;
  if (cuda::device_count() >= world) return {};
  return fmt::format("ranks that are threads need a GPU each: {} ranks, {} GPUs", world, cuda::device_count());
}

// Where threads meet.
class ThreadRendezvous {
 public:
  explicit ThreadRendezvous(int world, std::chrono::milliseconds timeout) : world_(world), timeout_(timeout) {}

  class Place final : public Rendezvous {
   public:
    Place(ThreadRendezvous& shared, int rank) : shared_(shared), rank_(rank) {}
    std::string meet(std::string_view purpose, std::string_view brought) override {
      return shared_.meet(rank_, purpose, brought);
    }

   private:
    ThreadRendezvous& shared_;
    int rank_;
  };

 private:
  std::string meet(int rank, std::string_view purpose, std::string_view brought) {
    std::unique_lock lock(mutex_);
    if (rank == 0) brought_ = brought;
    const int until = (came_++ / world_ + 1) * world_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, timeout_, [&] { return came_ >= until; })) fail("a rank did not come to {}", purpose);
    return brought_;
  }

  const int world_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int came_ = 0;
  std::string brought_;
};

struct NcclRank {
  Communicator& world;
  Device& device;
  Stream& stream;
  NcclWatch& watch;
};

// What each rank ended with: empty where all went well. `registered_lane`, if any, has memory that NCCL knows.
inline std::vector<std::string> run_nccl_ranks(int world, const std::function<void(NcclRank&)>& rank_main,
                                               std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000),
                                               const NcclOptions& options = {},
                                               const std::string& registered_lane = {}) {
  ThreadRendezvous rendezvous(world, timeout);
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto device = cuda::make_device(emulated ? 0 : rank);
        std::optional<NcclBuffers> buffers;
        NcclOptions own_options = options;
        if (!registered_lane.empty()) own_options.buffers = &buffers.emplace(*device, registered_lane);
        const auto stream = device->create_stream("compute");
        CommunicationCounters counters;
        PhaseClock clock;
        NcclWatch watch(*device, timeout);
        ThreadRendezvous::Place place(rendezvous, rank);
        const auto communicator =
            make_nccl_world({rank, world, rank, world}, place, *stream, own_options, watch, counters, clock);
        NcclRank self{*communicator, *device, *stream, watch};
        rank_main(self);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Elements on a device, of any dtype, seen as doubles.
class DeviceElements {
 public:
  DeviceElements(Stream& stream, DType dtype, const std::vector<double>& values)
      : stream_(stream), dtype_(dtype), size_(std::ssize(values)) {
    bytes_ = std::max<std::int64_t>(size_ * size_of(dtype), 1);
    data_ = static_cast<std::byte*>(stream.device().allocate(bytes_, stream));
    auto* staging = static_cast<std::byte*>(stream.device().allocate_staging(bytes_));
    for (std::int64_t i = 0; i < size_; ++i) put(staging, i, values[static_cast<std::size_t>(i)]);
    if (size_ > 0) stream.device().copy(stream, staging, data_, bytes_);
    // The staging memory may serve another copy at once.
    stream.synchronize();
    stream.device().release_staging(staging, bytes_);
  }
  DeviceElements(Stream& stream, DType dtype, std::int64_t size)
      : DeviceElements(stream, dtype, std::vector<double>(static_cast<std::size_t>(size), -77.0)) {}
  ~DeviceElements() {
    try {
      stream_.device().release(data_, bytes_, stream_);
    } catch (const Error&) {
    }
  }
  DeviceElements(const DeviceElements&) = delete;
  DeviceElements& operator=(const DeviceElements&) = delete;

  TensorView view() const { return {data_, dtype_, size_, 1}; }
  TensorView part(std::int64_t begin, std::int64_t count) const {
    return {data_ + begin * size_of(dtype_), dtype_, count, 1};
  }
  // After what is queued on the stream.
  std::vector<double> values() const {
    auto* staging = static_cast<std::byte*>(stream_.device().allocate_staging(bytes_));
    if (size_ > 0) stream_.device().copy(stream_, data_, staging, bytes_);
    stream_.synchronize();
    std::vector<double> result;
    for (std::int64_t i = 0; i < size_; ++i) result.push_back(get(staging, i));
    stream_.device().release_staging(staging, bytes_);
    return result;
  }

 private:
  template <typename Use>
  void with_element(std::byte* data, std::int64_t i, Use use) const {
    std::byte* at = data + i * size_of(dtype_);
    switch (dtype_) {
      case DType::float32:
        return use(*reinterpret_cast<float*>(at));
      case DType::bfloat16:
        return use(*reinterpret_cast<bfloat16*>(at));
      case DType::float16:
        return use(*reinterpret_cast<float16*>(at));
      case DType::float64:
        return use(*reinterpret_cast<double*>(at));
      case DType::int32:
        return use(*reinterpret_cast<std::int32_t*>(at));
      default:
        fail("{} is not communicated", name_of(dtype_));
    }
  }
  void put(std::byte* data, std::int64_t i, double value) const {
    with_element(data, i, [&]<typename T>(T& element) {
      if constexpr (sizeof(T) == 2) {
        element = T(static_cast<float>(value));
      } else {
        element = static_cast<T>(value);
      }
    });
  }
  double get(std::byte* data, std::int64_t i) const {
    double value = 0;
    with_element(data, i, [&]<typename T>(T& element) {
      if constexpr (sizeof(T) == 2) {
        value = static_cast<float>(element);
      } else {
        value = static_cast<double>(element);
      }
    });
    return value;
  }

  Stream& stream_;
  DType dtype_;
  std::int64_t size_, bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace weft
