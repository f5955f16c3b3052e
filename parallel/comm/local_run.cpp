#include "parallel/comm/local_run.h"

#include <thread>

namespace weft {

LocalRun::LocalRun(int world, std::chrono::milliseconds timeout)
    : timeout_(timeout),
      wait_style_(world <= static_cast<int>(std::thread::hardware_concurrency()) ? WaitStyle::spin : WaitStyle::yield),
      finished_(static_cast<std::size_t>(world)) {}

void LocalRun::fail_with(int world_rank, ErrorKind kind, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_.emplace(kind, fmt::format("rank {}: {}", world_rank, message));
  failed_.store(true, std::memory_order_release);
}

void LocalRun::throw_if_failed() const {
  if (error_) throw Error(*error_);
}

}  // namespace weft
