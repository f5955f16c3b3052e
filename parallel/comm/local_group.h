// What the ranks of one group share: a seat for each rank, where it publishes what it is about to do, the barrier where
// they meet, and a channel for each ordered pair of ranks. Ranks are numbered within the group.
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
#include "parallel/comm/local_barrier.h"
#include "parallel/comm/local_run.h"

namespace weft {

// Not counted, hence no CollectiveOp.
inline constexpr std::string_view split_operation = "split";

// What one rank brings to a collective call. What must agree between ranks is compared (disagreement); pointers are
// read by the peers.
struct Arrival {
  std::string_view operation;
  DType dtype = DType::float32;
  std::int64_t elements = 0;
  Reduce reduce = Reduce::sum;
  int root = 0;
  // Elements by rank: what each gives or gets, or what this rank sends to each.
  std::span<const std::int64_t> counts = {};
  std::span<const std::int64_t> receive_counts = {};
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  Fence fence = nullptr;  // when the buffers may be read; on parting, when this rank has read its peers'
  int color = 0, key = 0;
  std::string_view name = {};
};

// At most one message is under way; its sender keeps the storage until the state is `empty` again.
struct LocalChannel {
  enum State : std::uint32_t { empty, full, reading, retracted, refused };
  WaitWord state;
  // Written by the sender while empty, read by the receiver while reading.
  ConstTensorView message;
  Fence sent;  // when the message may be read
  // Written by the receiver before `empty`: when the message has been read.
  Fence received;
  std::string refusal;  // why both sides stop; written by the receiver before `refused`
};

class LocalGroup {
 public:
  LocalGroup(LocalRun& run, std::string name, std::vector<int> world_ranks);

  LocalRun& run() { return run_; }
  const std::string& name() const { return name_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[rank]; }
  // "rank 1", or "rank 1 (world rank 5)" where the two differ.
  std::string name_of_rank(int rank) const;

  // Publishes what `rank` is about to do and joins the group's next meeting. Nothing: a rank has given up.
  std::optional<std::uint32_t> arrive(int rank, const Arrival& arrival);
  LocalBarrier& barrier() { return barrier_; }
  // What a rank brought to the meeting; to be read between this meeting and the next one.
  const Arrival& arrival(int rank, std::uint32_t meeting) const { return seats_[rank].arrivals[meeting % 2]; }
  std::vector<int> missing(std::uint32_t meeting) const;

  // The words with which the ranks that come after a withdrawal end.
  void set_failure(const std::string& text);
  std::string failure();

  LocalChannel& channel(int source, int destination) { return channels_[source * size() + destination]; }
  // Where the first rank of a color leaves the group that a split makes.
  std::shared_ptr<LocalGroup>& created(int rank) { return seats_[rank].created; }

 private:
  struct alignas(64) Seat {
    // Two, because a rank may come to the next meeting while its peers still read what it brought to this one.
    std::array<Arrival, 2> arrivals;
    std::atomic<std::uint32_t> meetings{0};
    std::shared_ptr<LocalGroup> created;
  };

  LocalRun& run_;
  const std::string name_;
  const std::vector<int> world_ranks_;
  std::vector<Seat> seats_;
  std::vector<LocalChannel> channels_;
  LocalBarrier barrier_;
  std::mutex failure_mutex_;
  std::string failure_;
};

// How a call reads in messages: "all_gather of 64 bytes float32".
std::string describe(const Arrival& arrival);
// Why the calls that met do not fit together. Every rank comes to the same answer, so that all of them end.
std::optional<std::string> disagreement(const LocalGroup& group, std::uint32_t meeting);

}  // namespace weft
