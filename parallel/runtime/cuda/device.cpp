#include "parallel/runtime/cuda/device.h"

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExtCudaRt.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "parallel/runtime/cuda/captured_regions.h"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/device.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/pool_refusal.h"

namespace weft::cuda {
namespace {

// CUDA events behind Event, kept for reuse: a step records thousands of events.

// Events of one device. Any thread may take and give back events: another rank may be the last holder of a fence.
class EventPool {
 public:
  ~EventPool() {
    for (const auto& events : free_) {
      for (cudaEvent_t event : events) cudaEventDestroy(event);
    }
  }
  cudaEvent_t take(bool timed) {
    {
      const std::lock_guard lock(mutex_);
      std::vector<cudaEvent_t>& events = free_[timed ? 1 : 0];
      if (!events.empty()) {
        cudaEvent_t event = events.back();
        events.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
    return event;
  }
  void give_back(cudaEvent_t event, bool timed) {
    const std::lock_guard lock(mutex_);
    free_[timed ? 1 : 0].push_back(event);
  }

  // Called after each wait of the host for this device; see check_after_waits (device.h).
  std::function<void()> after_wait;

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_[2];  // without and with time
};

class CudaEvent final : public Event {
 public:
  // Records on `stream`.
  CudaEvent(std::shared_ptr<EventPool> pool, cudaStream_t stream, bool timed)
      : pool_(std::move(pool)), timed_(timed), event_(pool_->take(timed)) {
    WEFT_CUDA_CHECK(cudaEventRecord(event_, stream));
  }
  ~CudaEvent() override { pool_->give_back(event_, timed_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t native() const { return event_; }
  void synchronize() const override {
    WEFT_CUDA_CHECK(cudaEventSynchronize(event_));
    if (pool_->after_wait) pool_->after_wait();
  }
  bool reached() const override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    WEFT_CUDA_CHECK(status);
    return true;
  }
  double seconds_since(const Event& earlier) const override {
    const auto& begin = static_cast<const CudaEvent&>(earlier);
    require(timed_ && begin.timed_, "seconds are counted between events with a time");
    float milliseconds = 0.0f;
    WEFT_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  std::shared_ptr<EventPool> pool_;
  bool timed_;
  cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(Device& device, std::shared_ptr<EventPool> events, const std::string& lane, int priority,
             BlockSource* source)
      : device_(device), events_(std::move(events)), source_(source) {
    WEFT_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
    nvtxNameCudaStreamA(stream_, lane.c_str());
  }
  // Queued work still reads tensors of this rank.
  ~CudaStream() override;

  cudaStream_t native() const { return stream_; }
  BlockSource* source() const { return source_; }
  Device& device() override { return device_; }
  bool idle() {
    close_region();
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) return false;
    WEFT_CUDA_CHECK(status);
    return true;
  }
  Fence record() override { return recorded(false); }
  Fence record_time() override { return recorded(true); }
  void wait(const Fence& fence) override {
    if (fence == nullptr) return;
    close_region();
    WEFT_CUDA_CHECK(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(*fence).native(), 0));
  }
  void synchronize() override {
    close_region();
    WEFT_CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (events_->after_wait) events_->after_wait();
  }
  void capture_regions() { regions_ = std::make_unique<CapturedRegions>(stream_); }
  void begin_capture(std::int64_t key) override {
    if (regions_) regions_->begin(key);
  }
  void end_capture() override { close_region(); }
  // Null if none is open.
  CapturedRegions* open_region() const { return regions_ && regions_->open() ? regions_.get() : nullptr; }

 private:
  Fence recorded(bool timed) {
    close_region();
    return std::make_shared<CudaEvent>(events_, stream_, timed);
  }
  void close_region() {
    if (regions_) regions_->close();
  }

  Device& device_;
  std::shared_ptr<EventPool> events_;
  BlockSource* source_;  // null: the device's pool
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CapturedRegions> regions_;  // null: none is captured
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    WEFT_CUDA_CHECK(cudaSetDevice(index));
    WEFT_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least_priority_, &greatest_priority_));
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, index};
    WEFT_CUDA_CHECK(cudaMemPoolCreate(&pool_, &properties));
    // A step's sizes repeat, so the pool keeps all its memory.
    auto keep = std::numeric_limits<std::uint64_t>::max();
    WEFT_CUDA_CHECK(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
    // Otherwise the pool may give a gather a block that compute is about to free, and make the gather wait for compute.
    int never = 0;
    WEFT_CUDA_CHECK(cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &never));
    // Kernels without a ledger take a few KiB of scratch from the default pool.
    cudaMemPool_t scratch = nullptr;
    WEFT_CUDA_CHECK(cudaDeviceGetDefaultMemPool(&scratch, index));
    WEFT_CUDA_CHECK(cudaMemPoolSetAttribute(scratch, cudaMemPoolAttrReleaseThreshold, &keep));
  }
  ~CudaDevice() override {
    staging_.release_all(cudaFreeHost);
    cudaMemPoolDestroy(pool_);
  }

  // Lanes other than compute carry little work that other work waits for, so they have the highest priority. The lane
  // `products` runs products of experts beside others; they are compute's own work and have the lowest.
  std::unique_ptr<Stream> create_stream(std::string_view lane) override {
    const int priority = lane == "compute" || lane == "products" ? least_priority_ : greatest_priority_;
    const auto source = sources_.find(lane);
    auto stream = std::make_unique<CudaStream>(*this, events_, std::string(lane), priority,
                                               source == sources_.end() ? nullptr : source->second);
    if (captures_regions_ && lane == "compute") stream->capture_regions();
    streams_.push_back(stream.get());
    return stream;
  }
  void forget(const CudaStream& stream) { std::erase(streams_, &stream); }
  // The next call tells of a failed device.
  void make_current() override { cudaSetDevice(index_); }

  void* allocate(std::int64_t bytes, Stream& stream) override {
    if (void* data = take(bytes, stream)) return data;
    // Work in flight may hold blocks, or the free pieces may be too small.
    const auto begin = Clock::now();
    for (bool idle = false; !idle && Clock::now() - begin < patience_;) {
      idle = idle_after(std::chrono::milliseconds(1));
      WEFT_CUDA_CHECK(cudaMemPoolTrimTo(pool_, 0));
      if (void* data = take(bytes, stream)) return data;
    }
    std::size_t free_bytes = 0, total_bytes = 0;
    WEFT_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    fail("{}",
         refusal_text(bytes, {static_cast<std::int64_t>(free_bytes), static_cast<std::int64_t>(total_bytes),
                              attribute(cudaMemPoolAttrReservedMemCurrent), attribute(cudaMemPoolAttrUsedMemCurrent)}));
  }
  void release(void* data, std::int64_t bytes, Stream& stream) override {
    if (BlockSource* source = static_cast<CudaStream&>(stream).source()) return source->release(data, bytes);
    if (CapturedRegions* region = static_cast<CudaStream&>(stream).open_region()) {
      return region->release(data, bytes);
    }
    // Tensors end while an error propagates, and a failed device refuses every call. Only the first error counts.
    cudaFreeAsync(data, cuda::native(stream));
  }
  // The pool asks the system when it grows. Each call here notices at most one growth.
  std::int64_t system_allocations() const override {
    const std::int64_t reserved = attribute(cudaMemPoolAttrReservedMemCurrent);
    if (reserved > largest_reserved_) ++growths_;
    largest_reserved_ = std::max(largest_reserved_, reserved);
    std::int64_t total = growths_;
    for (const auto& [lane, source] : sources_) total += source->system_allocations();
    return total;
  }
  PoolUse use() const { return {attribute(cudaMemPoolAttrReservedMemHigh), attribute(cudaMemPoolAttrUsedMemHigh)}; }

  void* allocate_staging(std::int64_t bytes) override {
    void* data = staging_.take(bytes);
    if (data == nullptr) WEFT_CUDA_CHECK(cudaMallocHost(&data, static_cast<std::size_t>(bytes)));
    return data;
  }
  void release_staging(void* data, std::int64_t bytes) override { staging_.put(data, bytes); }
  void copy(Stream& stream, const void* from, void* to, std::int64_t bytes) override {
    WEFT_CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, cuda::native(stream)));
  }

  const ElementwiseKernels& elementwise() const override { return elementwise_kernels; }

  void capture_regions() { captures_regions_ = true; }
  void serve_lane(std::string_view lane, BlockSource* source) {
    if (source == nullptr) {
      sources_.erase(std::string(lane));
    } else {
      sources_[std::string(lane)] = source;
    }
  }
  void check_after_waits(std::function<void()> check, std::chrono::duration<double> patience) {
    events_->after_wait = std::move(check);
    patience_ = patience;
  }
  void start_profiler() override { WEFT_CUDA_CHECK(cudaProfilerStart()); }
  void stop_profiler() override { WEFT_CUDA_CHECK(cudaProfilerStop()); }

 private:
  using Clock = std::chrono::steady_clock;

  // Whether all queued work was done before, or `pause` after, the call.
  bool idle_after(std::chrono::milliseconds pause) {
    const auto idle = [this] {
      return std::ranges::all_of(streams_, [](CudaStream* stream) { return stream->idle(); });
    };
    if (idle()) return true;
    std::this_thread::sleep_for(pause);
    return false;
  }
  // Null if there is no room now.
  void* take(std::int64_t bytes, Stream& stream) {
    if (BlockSource* source = static_cast<CudaStream&>(stream).source()) return source->allocate(bytes);
    void* data = nullptr;
    CapturedRegions* region = static_cast<CudaStream&>(stream).open_region();
    const auto size = static_cast<std::size_t>(bytes);
    const cudaError_t status = region ? region->allocate(&data, bytes, pool_)
                                      : cudaMallocFromPoolAsync(&data, size, pool_, cuda::native(stream));
    if (status == cudaSuccess) return data;
    cudaGetLastError();
    return nullptr;
  }

  std::int64_t attribute(cudaMemPoolAttr which) const {
    std::uint64_t value = 0;
    WEFT_CUDA_CHECK(cudaMemPoolGetAttribute(pool_, which, &value));
    return static_cast<std::int64_t>(value);
  }

  const int index_;
  int least_priority_ = 0, greatest_priority_ = 0;
  std::chrono::duration<double> patience_ = no_limit;
  bool captures_regions_ = false;
  std::vector<CudaStream*> streams_;
  cudaMemPool_t pool_ = nullptr;
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
  std::map<std::string, BlockSource*, std::less<>> sources_;  // by lane
  FreeBlocks staging_;
  mutable std::int64_t largest_reserved_ = 0, growths_ = 0;
};

CudaStream::~CudaStream() {
  static_cast<CudaDevice&>(device_).forget(*this);
  regions_.reset();
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

}  // namespace

cudaStream_t native(Stream& stream) {
  return static_cast<CudaStream&>(stream).native();
}

std::optional<std::string> why_no_device() {
  int driver = 0, count = 0;
  cudaDriverGetVersion(&driver);
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status == cudaSuccess && count > 0) return std::nullopt;
  if (driver == 0) return "no NVIDIA driver is installed";
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the driver supports CUDA {}.{}, but this build needs {}.{}", driver / 1000, driver % 1000 / 10,
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (status == cudaErrorNoDevice || count == 0) return "the driver sees no GPU";
  return fmt::format("the driver fails: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Device> make_device(int index) {
  if (const auto reason = why_no_device()) fail_request("device cuda cannot be used: {}", *reason);
  if (index < 0 || index >= device_count()) {
    fail_request("GPU {} was asked for, but this machine shows {}", index, device_count());
  }
  return std::make_unique<CudaDevice>(index);
}

PoolUse pool_use(Device& device) {
  return static_cast<CudaDevice&>(device).use();
}

void capture_regions(Device& device) {
  static_cast<CudaDevice&>(device).capture_regions();
}

void serve_lane(Device& device, std::string_view lane, BlockSource* source) {
  static_cast<CudaDevice&>(device).serve_lane(lane, source);
}

void check_after_waits(Device& device, std::function<void()> check, std::chrono::duration<double> patience) {
  static_cast<CudaDevice&>(device).check_after_waits(std::move(check), patience);
}

}  // namespace weft::cuda
