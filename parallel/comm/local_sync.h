// The means by which ranks as threads of one process wait for each other: a word, a group's barrier, the state of the
// run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {

// A wait of one thread for another: one side changes a 32-bit word, and the other side watches the word.
enum class WaitStyle : std::uint8_t {
  // Every rank has a core. The word usually changes within microseconds, so check it repeatedly before sleeping.
  spin,
  // More ranks than cores. The awaited rank may need this core.
  yield,
};

// Sleeps in the kernel (futex), so that a waiting rank uses no processor time. All functions are thread-safe.
class WaitWord {
 public:
  std::uint32_t load() const { return word_.load(std::memory_order_acquire); }
  // Both wake all sleepers.
  void store(std::uint32_t value);
  bool replace(std::uint32_t expected, std::uint32_t value);
  // Waits until the word differs from `value`, but at most 20 ms, so that the caller can check whether to wait further.
  // Returns whether the word differs.
  bool wait_while(std::uint32_t value, WaitStyle style);

 private:
  void wake();

  alignas(64) std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// The barrier of a group. A rank that stops waiting withdraws. One atomic step decides whether it withdrew before or
// after the last rank came. If a meeting takes place, every rank knows that all others are present, and may read their
// buffers.
class LocalBarrier {
 public:
  LocalBarrier(int size, WaitStyle style) : size_(static_cast<std::uint32_t>(size)), style_(style) {}

  // Joins the current meeting and returns its number. Nothing if a rank has withdrawn; no meeting follows then.
  std::optional<std::uint32_t> arrive();
  // Waits for at most one slice (WaitWord). Returns whether all ranks have come.
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

// State shared by all ranks of one local run: failure and its error, finished ranks, and the style of waiting.
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
