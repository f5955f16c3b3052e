// State shared by all ranks of one local run: failure and its error, finished ranks, and the style of waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/local_wait.h"
#include "parallel/runtime/error.h"

namespace weft {

class LocalRun {
 public:
  LocalRun(int world, std::chrono::milliseconds timeout);

  std::chrono::milliseconds timeout() const { return timeout_; }
  WaitStyle wait_style() const { return wait_style_; }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Whether a rank has returned from its function; it will make no further calls.
  bool finished(int world_rank) const { return finished_[world_rank].load(std::memory_order_acquire); }

  void finish(int world_rank) { finished_[world_rank].store(true, std::memory_order_release); }
  // Keeps only the first error; later errors are consequences of the first.
  void fail_with(int world_rank, ErrorKind kind, const std::string& message);
  // Call after all ranks have been joined.
  void throw_if_failed() const;

 private:
  const std::chrono::milliseconds timeout_;
  const WaitStyle wait_style_;
  std::atomic<bool> failed_{false};
  std::vector<std::atomic<bool>> finished_;
  std::mutex mutex_;
  std::optional<Error> error_;  // guarded by mutex_ while ranks run
};

}  // namespace weft
