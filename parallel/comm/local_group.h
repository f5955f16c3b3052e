// State shared by the ranks of one group: a slot for each rank, the barrier, and a channel for each ordered pair of
// ranks. A rank publishes its next call at its slot. Ranks are numbered within the group.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/local_sync.h"

namespace weft {

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
