// Detects lost NCCL peers. An NCCL kernel runs for ever if its peer never comes, and so does the host's wait for the
// kernel. A thread of the watch therefore checks all calls of the rank. If a call fails, or no call completes for
// longer than the timeout, the thread aborts all communicators of the rank. Their kernels end, the host's wait returns,
// and the check after every wait throws. Every rank does the same, so all end within the timeout.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "parallel/comm/counters.h"
#include "parallel/runtime/device.h"
#include "parallel/runtime/dtype.h"

struct ncclComm;  // of nccl.h

namespace weft {

// The participants of a call, for messages. Belongs to a communicator and outlives its calls.
struct NcclMembers {
  std::string group;
  int rank = 0;                  // within the group
  std::vector<int> world_ranks;  // of all members
};

class NcclWatch {
 public:
  // One per rank, created on the rank's thread; outlives the rank's communicators. From then
  // on every wait of the host for the device checks this watch.
  explicit NcclWatch(Device& device, std::chrono::milliseconds timeout = std::chrono::milliseconds(300'000));
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  std::chrono::milliseconds timeout() const { return timeout_; }

  // Sets the rank's current action, for messages.
  void set_action(std::string_view name);

  // Throws Error if communication has been given up.
  void check() const;
  // Blocks the host until the fence is reached. Throws Error if communication is given up before.
  void wait(const Fence& fence) const;

  // --- for communicators; called on the rank's thread

  struct Call {
    const NcclMembers* members = nullptr;
    std::string_view operation;
    std::int64_t bytes = 0;
    DType dtype = DType::float32;
    int peer = -1;  // of a message; -1 for a collective
  };
  // NCCL calls for one communicator must not overlap, and the watch's thread makes some. The lock prevents that. Throws
  // like check().
  std::unique_lock<std::timed_mutex> enter();
  // Adds a communicator of `members` to the watch. It is aborted together with the others; `handle` then becomes null.
  void add(ncclComm** handle, const NcclMembers& members);
  void remove(ncclComm** handle);
  // Polls `handle` until its last call has been carried out; `call` names that call. If the call fails or takes longer
  // than the timeout, gives up all communication and throws Error. Call between enter() and the release of its lock.
  void finish(ncclComm* handle, const Call& call);
  // `call` has been queued and is complete at `end`.
  void queued(const Call& call, Fence end);
  // Removes the calls of a communicator before its destruction.
  void forget(const NcclMembers& members);
  // Gives up all communication, because the rank has failed and its peers cannot know. Later calls throw.
  void abandon();
  // Gives up all communication and throws.
  [[noreturn]] void give_up(std::unique_lock<std::timed_mutex>& entered, const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    ncclComm** handle;
    const NcclMembers* members;
  };
  struct Queued {
    Call call;
    std::string action;
    Clock::time_point since;
    Fence end;
  };

  void poll_until_closed();
  // The description of a call without progress, if there is one.
  std::optional<std::string> timeout_reason();
  // The description of a communicator that itself reports an error, if there is one. Call between enter() and the
  // release of its lock.
  std::optional<std::string> asynchronous_error();
  std::string describe(const Call& call, std::string_view action) const;
  void abort_all(const std::string& reason);
  std::optional<std::string> failure() const;

  Device& device_;
  const std::chrono::milliseconds timeout_;

  std::timed_mutex nccl_;         // taken before mutex_
  std::vector<Watched> watched_;  // guarded by nccl_; unguarded if a call hangs while holding nccl_

  mutable std::mutex mutex_;
  std::string action_;        // only the rank's thread writes it, and reads it unguarded
  std::deque<Queued> calls_;  // not known to be complete, in order of queueing
  Clock::time_point progress_{};
  std::optional<std::string> failure_;
  bool stopping_ = false;
  std::condition_variable stop_;
  std::thread thread_;
};

}  // namespace weft
