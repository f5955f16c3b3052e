// CUDA events behind Event, kept for reuse: a step records thousands of events.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "parallel/runtime/device.h"

namespace weft::cuda {

// Events of one device. Any thread may take and give back events: another rank may be the last holder of a fence.
class EventPool {
 public:
  ~EventPool();
  cudaEvent_t take(bool timed);
  void give_back(cudaEvent_t event, bool timed);

  // Called after each wait of the host for this device; see check_after_waits (device.h).
  std::function<void()> after_wait;

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_[2];  // without and with time
};

class CudaEvent final : public Event {
 public:
  // Records on `stream`.
  CudaEvent(std::shared_ptr<EventPool> pool, cudaStream_t stream, bool timed);
  ~CudaEvent() override { pool_->give_back(event_, timed_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t native() const { return event_; }
  void synchronize() const override;
  bool reached() const override;
  double seconds_since(const Event& earlier) const override;

 private:
  std::shared_ptr<EventPool> pool_;
  bool timed_;
  cudaEvent_t event_;
};

}  // namespace weft::cuda
