// Finds out when NCCL's peers are gone. A kernel of NCCL whose peer never comes runs for ever, and the host that waits
// for it with it; so a thread of the watch looks at all calls of the rank, and when one fails or nothing has been done
// for longer than the timeout, it aborts all communicators of the rank. Their kernels end, the host's wait returns, and
// the check that follows every wait throws. Every rank does the same, so all end within the timeout.
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

// Who takes part in a call, for messages. Belongs to a communicator and outlives its calls.
struct NcclMembers {
  std::string group;
  int rank = 0;                  // within the group
  std::vector<int> world_ranks;  // of all members
};

class NcclWatch {
 public:
  // One per rank, made on its thread when `device` is current; outlives its communicators. Every wait of the host for
  // the device checks this watch from here on.
  explicit NcclWatch(Device& device, std::chrono::milliseconds timeout = std::chrono::milliseconds(300'000));
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  std::chrono::milliseconds timeout() const { return timeout_; }

  // What the rank does from here on, for messages.
  void set_action(std::string_view name);

  // Throws Error when communication has been given up.
  void check() const;
  // Blocks the host until the fence has been reached; throws Error when it never will be.
  void wait(const Fence& fence) const;

  // --- for communicators; called on the rank's thread

  struct Call {
    const NcclMembers* members = nullptr;
    std::string_view operation;
    std::int64_t bytes = 0;
    DType dtype = DType::float32;
    int peer = -1;  // of a message
  };
  // NCCL's calls for one communicator must not overlap, and the watch's thread makes some. Throws like check().
  std::unique_lock<std::timed_mutex> enter();
  // A communicator of `members` to be watched, and aborted with the others. `handle` becomes null then.
  void add(ncclComm** handle, const NcclMembers& members);
  void remove(ncclComm** handle);
  // Polls `handle` until its last call has been carried out; `call` names it. Throws Error (and gives everything up)
  // when that fails or takes longer than the timeout. To be called between enter() and the lock's release.
  void finish(ncclComm* handle, const Call& call);
  // `call` has been queued and is done at `end`.
  void queued(const Call& call, Fence end);
  // Forgets the calls of a communicator that is about to go.
  void forget(const NcclMembers& members);
  // Gives everything up and throws.
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

  void look_again_and_again();
  // What is wrong, if anything.
  std::optional<std::string> trouble();
  // The same of communicators that report an error by themselves. To be called between enter() and the lock's release.
  std::optional<std::string> asynchronous_error();
  std::string describe(const Call& call, std::string_view action) const;
  void abort_all(const std::string& reason);
  std::optional<std::string> failure() const;

  Device& device_;
  const std::chrono::milliseconds timeout_;
  const int cuda_device_;

  std::timed_mutex nccl_;         // taken before mutex_
  std::vector<Watched> watched_;  // guarded by nccl_, or, when a call hangs in it, by nobody

  mutable std::mutex mutex_;
  std::string action_;        // written by the rank's thread alone, which reads it unguarded
  std::deque<Queued> calls_;  // not known to be done, in order of queueing
  Clock::time_point progress_{};
  std::optional<std::string> failure_;
  bool stopping_ = false;
  std::condition_variable stop_;
  std::thread thread_;
};

}  // namespace weft
