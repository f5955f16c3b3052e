#include "parallel/runtime/cuda/event.h"

#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/error.h"

namespace weft::cuda {

EventPool::~EventPool() {
  for (const auto& events : free_) {
    for (cudaEvent_t event : events) cudaEventDestroy(event);
  }
}

cudaEvent_t EventPool::take(bool timed) {
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

void EventPool::give_back(cudaEvent_t event, bool timed) {
  const std::lock_guard lock(mutex_);
  free_[timed ? 1 : 0].push_back(event);
}

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool, cudaStream_t stream, bool timed)
    : pool_(std::move(pool)), timed_(timed), event_(pool_->take(timed)) {
  WEFT_CUDA_CHECK(cudaEventRecord(event_, stream));
}

void CudaEvent::synchronize() const {
  WEFT_CUDA_CHECK(cudaEventSynchronize(event_));
  if (pool_->after_wait) pool_->after_wait();
}

bool CudaEvent::reached() const {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) return false;
  WEFT_CUDA_CHECK(status);
  return true;
}

double CudaEvent::seconds_since(const Event& earlier) const {
  const auto& begin = static_cast<const CudaEvent&>(earlier);
  require(timed_ && begin.timed_, "seconds are counted between events with a time");
  float milliseconds = 0.0f;
  WEFT_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace weft::cuda
