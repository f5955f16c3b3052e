// State shared by ranks as threads of one process, and the means by which they wait for each other. A word, the barrier
// of a group and the state of the run are for waiting. A group has a slot for each rank, the barrier, and a channel for
// each ordered pair of ranks. A rank publishes its next call at its slot. Ranks are numbered within the group.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/error.h"

namespace weft {

// A wait of one thread for another: one side changes a 32-bit word, and the other side watches the word.
enum class WaitStyle : std::uint8_t {
  // Every rank has a core. The word usually changes within microseconds, so check it repeatedly before yielding.
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

// Not counted, therefore not a CollectiveOp.
inline constexpr std::string_view split_operation = "split";

// One rank's arguments of a collective call. disagreement() compares the fields that must agree between ranks; the
// peers read the pointers.
struct Arrival {
  std::string_view operation;
  DType dtype = DType::float32;
  std::int64_t elements = 0;
  Reduce reduce = Reduce::sum;
  int root = 0;
  // Elements by rank: the part of each rank, or in an all_to_all the elements that this rank sends to each rank.
  std::span<const std::int64_t> counts = {};
  std::span<const std::int64_t> receive_counts = {};
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  Fence fence = nullptr;  // reached when the buffers may be read; in part(), when this rank has read its peers' buffers
  int color = 0, key = 0;
  std::string_view name = {};
};

// At most one message is in flight. Its sender keeps the storage until the state is `empty` again.
struct LocalChannel {
  enum State : std::uint32_t { empty, full, reading, retracted, refused };
  WaitWord state;
  // Written by the sender in state `empty`, read by the receiver in state `reading`.
  ConstTensorView message;
  Fence sent;  // reached when the message may be read
  // Reached when the message has been read. Written by the receiver before `empty`.
  Fence received;
  std::string refusal;  // reason why both sides stop; written by the receiver before `refused`
};

class LocalGroup {
 public:
  LocalGroup(LocalRun& run, std::string name, std::vector<int> world_ranks);

  LocalRun& run() { return run_; }
  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[rank]; }
  // "rank 1", or "rank 1 (world rank 5)" if the two numbers differ.
  std::string name_of_rank(int rank) const;

  // Publishes the next call of `rank` and joins the group's next meeting. Nothing if a rank has withdrawn.
  std::optional<std::uint32_t> arrive(int rank, const Arrival& arrival);
  LocalBarrier& barrier() { return barrier_; }
  // The arguments that a rank brought to the meeting; valid between this meeting and the next one.
  const Arrival& arrival(int rank, std::uint32_t meeting) const { return slots_[rank].arrivals[meeting % 2]; }
  std::vector<int> missing(std::uint32_t meeting) const;

  // The error message of ranks that come after a withdrawal.
  void set_failure(const std::string& text);
  std::string failure();

  LocalChannel& channel(int source, int destination) { return channels_[source * size() + destination]; }
  // The first rank of a color stores the group made by a split here.
  std::shared_ptr<LocalGroup>& created(int rank) { return slots_[rank].created; }

 private:
  struct alignas(64) MemberSlot {
    // Two, because a rank may come to the next meeting while peers still read its arguments of this one.
    std::array<Arrival, 2> arrivals;
    std::atomic<std::uint32_t> meetings{0};
    std::shared_ptr<LocalGroup> created;
  };

  LocalRun& run_;
  const std::string name_;
  const std::vector<int> world_ranks_;
  std::vector<MemberSlot> slots_;
  std::vector<LocalChannel> channels_;
  LocalBarrier barrier_;
  std::mutex failure_mutex_;
  std::string failure_;
};

// The text of a call in messages: "all_gather of 64 bytes float32".
std::string describe(const Arrival& arrival);
// The reason why the calls of a meeting do not match. Every rank finds the same reason, so that all ranks end.
std::optional<std::string> disagreement(const LocalGroup& group, std::uint32_t meeting);

}  // namespace weft
