// The meeting point of a group. A rank that gives up waiting withdraws, and whether it did so before or after the last
// rank came is decided by one atomic step: when a meeting takes place, every rank knows that all the others are there,
// and may read their buffers.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "parallel/comm/local_wait.h"

namespace weft {

class LocalBarrier {
 public:
  LocalBarrier(int size, WaitStyle style) : size_(static_cast<std::uint32_t>(size)), style_(style) {}

  // Joins the current meeting and returns its number, or nothing when a rank has withdrawn: no meeting follows then.
  std::optional<std::uint32_t> arrive();
  // Whether all have come, after waiting for at most one slice (local_wait.h).
  bool wait(std::uint32_t meeting) { return all_came_.wait_while(meeting, style_); }
  // Leaves a meeting that has been joined. False: it is too late, all have come, and the caller goes on with them.
  bool withdraw(std::uint32_t meeting);

 private:
  const std::uint32_t size_;
  const WaitStyle style_;
  // Meeting number in the upper half; in the lower one a bit that says a rank withdrew, and how many have come.
  alignas(64) std::atomic<std::uint64_t> state_{0};
  WaitWord all_came_;  // meetings that have taken place
};

}  // namespace weft
