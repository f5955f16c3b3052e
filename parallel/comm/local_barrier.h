// The barrier of a group. A rank that stops waiting withdraws. One atomic step decides whether it withdrew before or
// after the last rank came. If a meeting takes place, every rank knows that all others are present, and may read their
// buffers.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "parallel/comm/local_wait.h"

namespace weft {

class LocalBarrier {
 public:
  LocalBarrier(int size, WaitStyle style) : size_(static_cast<std::uint32_t>(size)), style_(style) {}

  // Joins the current meeting and returns its number. Nothing if a rank has withdrawn; no meeting follows then.
  std::optional<std::uint32_t> arrive();
  // Waits for at most one slice (local_wait.h). Returns whether all ranks have come.
  bool wait(std::uint32_t meeting) { return all_came_.wait_while(meeting, style_); }
  // Leaves a joined meeting. False if all ranks have come already; the caller then continues with them.
  bool withdraw(std::uint32_t meeting);

 private:
  const std::uint32_t size_;
  const WaitStyle style_;
  // Upper half: the meeting's number. Lower half: a bit that is set if a rank withdrew, and the number of ranks
  // present.
  alignas(64) std::atomic<std::uint64_t> state_{0};
  WaitWord all_came_;  // meetings that have taken place
};

}  // namespace weft
