#include "parallel/comm/nccl/nccl_watch.h"

#include <algorithm>

#include "parallel/comm/nccl/nccl_communicator.h"
#include "parallel/runtime/cuda/device.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds look_interval{50};
// A rank's thread may hang inside NCCL, in a launch that finds the queue full. Only an abort then helps.
constexpr milliseconds abort_grace{1000};
// A step queues thousands of calls. Completed calls are dropped when there are this many.
constexpr std::size_t many_calls = 64;

}  // namespace

NcclWatch::NcclWatch(Device& device, milliseconds timeout) : device_(device), timeout_(timeout) {
  // A refused allocation says so before the timeout blames the peers that wait for this rank.
  cuda::check_after_waits(
      device_, [this] { check(); }, timeout / 2);
  thread_ = std::thread([this] { poll_until_closed(); });
}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
  cuda::check_after_waits(device_, {});
}

std::optional<std::string> NcclWatch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclWatch::check() const {
  if (const auto reason = failure()) throw Error(ErrorKind::failure, *reason);
}

void NcclWatch::wait(const Fence& fence) const {
  if (fence != nullptr) fence->synchronize();
  check();
}

std::unique_lock<std::timed_mutex> NcclWatch::enter() {
  std::unique_lock lock(nccl_);
  check();
  return lock;
}

void NcclWatch::set_action(std::string_view name) {
  const std::lock_guard lock(mutex_);
  action_ = name;
}

void NcclWatch::add(ncclComm** handle, const NcclMembers& members) {
  watched_.push_back({handle, &members});
}

void NcclWatch::remove(ncclComm** handle) {
  std::erase_if(watched_, [&](const Watched& watched) { return watched.handle == handle; });
}

void NcclWatch::finish(ncclComm* handle, const Call& call) {
  const auto begin = Clock::now();
  while (true) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(handle, &state);
    if (asked == ncclSuccess && state == ncclSuccess) return;
    const auto waited = Clock::now() - begin;
    std::string reason;
    if (asked != ncclSuccess || state != ncclInProgress) {
      reason = fmt::format("{} failed: {}", describe(call, action_),
                           describe_nccl(asked != ncclSuccess ? asked : state, handle));
    } else if (waited > timeout_) {
      reason = fmt::format("{} could not be begun within {} ms: its peers did not come", describe(call, action_),
                           timeout_.count());
    }
    if (!reason.empty()) {
      abort_all(reason);
      check();
    }
    // Queueing takes microseconds, and a sleep would be longer. Connecting takes milliseconds.
    if (waited > milliseconds(2)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } else {
      std::this_thread::yield();
    }
  }
}

void NcclWatch::queued(const Call& call, Fence end) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (calls_.size() >= many_calls) {
    const std::size_t before = calls_.size();
    // On one stream the oldest call completes first, and mostly on all streams.
    while (!calls_.empty() && calls_.front().end->reached()) calls_.pop_front();
    if (calls_.size() != before) progress_ = now;
  }
  calls_.push_back({call, action_, now, std::move(end)});
}

void NcclWatch::forget(const NcclMembers& members) {
  const std::lock_guard lock(mutex_);
  std::erase_if(calls_, [&](const Queued& queued) { return queued.call.members == &members; });
}

void NcclWatch::abandon() {
  std::unique_lock entered(nccl_, std::defer_lock);
  static_cast<void>(entered.try_lock_for(abort_grace));
  abort_all("the rank has failed");
}

void NcclWatch::give_up(std::unique_lock<std::timed_mutex>& entered, const std::string& reason) {
  require(entered.owns_lock(), "who gives up has entered");
  abort_all(reason);
  entered.unlock();
  throw Error(ErrorKind::failure, *failure());
}

std::string NcclWatch::describe(const Call& call, std::string_view action) const {
  const NcclMembers& members = *call.members;
  const auto rank_name = [&](int rank) { return members.world_ranks[rank]; };
  std::string text;
  if (!action.empty()) text = fmt::format("in {}: ", action);
  text += fmt::format("group {}: rank {}: {}", members.group, rank_name(members.rank), call.operation);
  if (call.bytes > 0) text += fmt::format(" of {} bytes {}", call.bytes, name_of(call.dtype));
  if (call.peer >= 0) return text + fmt::format(" with rank {}", rank_name(call.peer));
  std::vector<int> peers;
  for (int rank = 0; rank < static_cast<int>(members.world_ranks.size()); ++rank) {
    if (rank != members.rank) peers.push_back(rank_name(rank));
  }
  return text + " with " + ranks_text(peers);
}

std::optional<std::string> NcclWatch::timeout_reason() {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const std::size_t before = calls_.size();
  // Calls of one communicator complete in order. Each question costs the rank's thread a microsecond of the driver.
  std::vector<const NcclMembers*> under_way;
  std::erase_if(calls_, [&](const Queued& queued) {
    if (std::ranges::find(under_way, queued.call.members) != under_way.end()) return false;
    if (queued.end->reached()) return true;
    under_way.push_back(queued.call.members);
    return false;
  });
  if (calls_.size() != before) progress_ = now;
  if (calls_.empty()) return std::nullopt;
  // Other calls may wait behind the oldest call. While any call completes, the rank makes progress.
  const Queued& oldest = calls_.front();
  if (now - std::max(oldest.since, progress_) < timeout_) return std::nullopt;
  std::string text = fmt::format("{} was not done within {} ms: a peer did not come",
                                 describe(oldest.call, oldest.action), timeout_.count());
  if (calls_.size() > 1) text += fmt::format(" ({} later calls wait too)", calls_.size() - 1);
  return text;
}

std::optional<std::string> NcclWatch::asynchronous_error() {
  std::optional<std::string> text;
  for (const auto& [handle, members] : watched_) {
    ncclResult_t state = ncclSuccess;
    if (*handle == nullptr || (ncclCommGetAsyncError(*handle, &state) == ncclSuccess && accepted(state))) continue;
    const std::string why = describe_nccl(state, *handle);
    const std::lock_guard lock(mutex_);
    const auto call =
        std::ranges::find_if(calls_, [&](const Queued& queued) { return queued.call.members == members; });
    // All communicators that include a lost peer report an error. A communicator with a waiting call tells the most.
    if (call != calls_.end()) return fmt::format("{} failed: {}", describe(call->call, call->action), why);
    if (!text) text = fmt::format("{} failed: {}", describe({members, "communication"}, action_), why);
  }
  return text;
}

void NcclWatch::poll_until_closed() {
  device_.make_current();
  std::unique_lock stop_lock(mutex_);
  while (!stop_.wait_for(stop_lock, std::min(look_interval, timeout_ / 4), [this] { return stopping_; })) {
    if (failure_) continue;
    stop_lock.unlock();
    std::optional<std::string> reason;
    try {
      reason = timeout_reason();
    } catch (const Error&) {
      // The device has failed; the rank's own thread finds that too.
    }
    std::unique_lock entered(nccl_, std::defer_lock);
    if (reason) {
      static_cast<void>(entered.try_lock_for(abort_grace));
      abort_all(*reason);
    } else if (entered.try_lock()) {
      if (const auto error = asynchronous_error()) abort_all(*error);
    }
    if (entered.owns_lock()) entered.unlock();
    stop_lock.lock();
  }
}

void NcclWatch::abort_all(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = reason;
    calls_.clear();
  }
  // As a group: one by one, the first abort might wait for a kernel behind a running kernel of another communicator.
  ncclGroupStart();
  for (const auto& [handle, members] : watched_) {
    if (*handle != nullptr) ncclCommAbort(std::exchange(*handle, nullptr));
  }
  ncclGroupEnd();
}

}  // namespace weft
