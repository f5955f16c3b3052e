#include "parallel/comm/local_group.h"

#include <fmt/ranges.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <numeric>
#include <thread>

namespace weft {

namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
                  std::atomic<std::uint32_t>::is_always_lock_free,
              "the kernel sees the atomic as a plain 32-bit word");

// A failure of another rank is noticed after at most this time.
constexpr timespec wait_slice{.tv_sec = 0, .tv_nsec = 20'000'000};
// Measured on 2 cores: about 0.25 us per barrier with a core per rank, 2-4 us with 4 or 8 ranks. More than 300 checks of
// ranks with a core each took other processes' time, and no step of two ranks became faster. A yield hands the core to
// such processes. 20 yields instead of 200 cost a step of two tensor ranks 1 %: the ranks slept and woke late.
constexpr int spins = 300;
constexpr int yields = 200;

}  // namespace

void WaitWord::wake() {
  // Sequentially consistent on both sides: either wake() sees the sleeper, or the sleeper sees the new word.
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  syscall(SYS_futex, &word_, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr, 0);
}

void WaitWord::store(std::uint32_t value) {
  word_.store(value, std::memory_order_seq_cst);
  wake();
}

bool WaitWord::replace(std::uint32_t expected, std::uint32_t value) {
  if (!word_.compare_exchange_strong(expected, value, std::memory_order_seq_cst)) return false;
  wake();
  return true;
}

bool WaitWord::wait_while(std::uint32_t value, WaitStyle style) {
  if (style == WaitStyle::spin) {
    for (int i = 0; i < spins; ++i) {
      if (load() != value) return true;
      _mm_pause();
    }
  }
  for (int i = 0; i < yields; ++i) {
    if (load() != value) return true;
    sched_yield();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &word_, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, &wait_slice, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return load() != value;
}

namespace {

constexpr std::uint64_t withdrawn = 1u << 31;

constexpr std::uint32_t meeting_of(std::uint64_t state) {
  return static_cast<std::uint32_t>(state >> 32);
}
constexpr std::uint32_t arrived_in(std::uint64_t state) {
  return static_cast<std::uint32_t>(state & (withdrawn - 1));
}

}  // namespace

std::optional<std::uint32_t> LocalBarrier::arrive() {
  const std::uint64_t before = state_.fetch_add(1, std::memory_order_acq_rel);
  if ((before & withdrawn) != 0) return std::nullopt;
  const std::uint32_t meeting = meeting_of(before);
  if (arrived_in(before) + 1 == size_) {
    // The next meeting opens before any rank learns that this meeting is complete.
    state_.store(static_cast<std::uint64_t>(meeting + 1) << 32, std::memory_order_release);
    all_came_.store(meeting + 1);
  }
  return meeting;
}

bool LocalBarrier::withdraw(std::uint32_t meeting) {
  std::uint64_t state = state_.load(std::memory_order_acquire);
  while (meeting_of(state) == meeting && (state & withdrawn) == 0) {
    if (arrived_in(state) == size_) return false;
    if (state_.compare_exchange_weak(state, state | withdrawn, std::memory_order_acq_rel)) return true;
  }
  return meeting_of(state) == meeting;
}

LocalRun::LocalRun(int world, std::chrono::milliseconds timeout)
    : timeout_(timeout),
      wait_style_(world <= static_cast<int>(std::thread::hardware_concurrency()) ? WaitStyle::spin : WaitStyle::yield),
      finished_(world) {}

void LocalRun::fail_with(int world_rank, ErrorKind kind, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_.emplace(kind, fmt::format("rank {}: {}", world_rank, message));
  failed_.store(true, std::memory_order_release);
}

void LocalRun::throw_if_failed() const {
  if (error_) throw Error(*error_);
}

namespace {

bool same_call(const Arrival& a, const Arrival& b, int size) {
  if (a.operation != b.operation || a.dtype != b.dtype || a.elements != b.elements || a.reduce != b.reduce ||
      a.root != b.root) {
    return false;
  }
  // In an all_to_all the counts of two ranks may differ but must match each other; see disagreement().
  if (!a.receive_counts.empty() || (a.counts.empty() && b.counts.empty())) return true;
  for (int rank = 0; rank < size; ++rank) {
    const auto count = [&](const Arrival& of) { return of.counts.empty() ? of.elements / size : of.counts[rank]; };
    if (count(a) != count(b)) return false;
  }
  return true;
}

}  // namespace

std::string describe(const Arrival& arrival) {
  std::string text(arrival.operation);
  if (arrival.operation == name_of(CollectiveOp::barrier) || arrival.operation == split_operation) return text;
  const std::int64_t elements = arrival.receive_counts.empty()
                                    ? arrival.elements
                                    : std::accumulate(arrival.counts.begin(), arrival.counts.end(), std::int64_t{0});
  text += fmt::format(" of {} bytes {}", elements * size_of(arrival.dtype), name_of(arrival.dtype));
  if (arrival.reduce == Reduce::max) text += " (maximum)";
  if (arrival.operation == name_of(CollectiveOp::broadcast)) text += fmt::format(" from rank {}", arrival.root);
  if (!arrival.counts.empty()) text += fmt::format(" by counts {}", fmt::join(arrival.counts, ","));
  return text;
}

std::optional<std::string> disagreement(const LocalGroup& group, std::uint32_t meeting) {
  const int size = group.size();
  const Arrival& first = group.arrival(0, meeting);
  for (int rank = 1; rank < size; ++rank) {
    const Arrival& other = group.arrival(rank, meeting);
    if (!same_call(first, other, size)) {
      return fmt::format("group {}: {} is in {} while {} is in {}", group.name(), group.name_of_rank(0),
                         describe(first), group.name_of_rank(rank), describe(other));
    }
  }
  if (first.receive_counts.empty() && first.operation != split_operation) return std::nullopt;
  for (int a = 0; a < size; ++a) {
    const Arrival& one = group.arrival(a, meeting);
    for (int b = 0; b < size; ++b) {
      const Arrival& other = group.arrival(b, meeting);
      if (!one.receive_counts.empty() && one.counts[b] != other.receive_counts[a]) {
        return fmt::format("group {}: in all_to_all {} sends {} elements to {}, which expects {}", group.name(),
                           group.name_of_rank(a), one.counts[b], group.name_of_rank(b), other.receive_counts[a]);
      }
      if (one.color == other.color && one.name != other.name) {
        return fmt::format("group {}: in split {} names the group of color {} '{}' while {} names it '{}'",
                           group.name(), group.name_of_rank(a), one.color, one.name, group.name_of_rank(b), other.name);
      }
    }
  }
  return std::nullopt;
}

LocalGroup::LocalGroup(LocalRun& run, std::string name, std::vector<int> world_ranks)
    : run_(run),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      slots_(world_ranks_.size()),
      channels_(world_ranks_.size() * world_ranks_.size()),
      barrier_(size(), run.wait_style()) {}

std::string LocalGroup::name_of_rank(int rank) const {
  if (world_ranks_[rank] == rank) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (world rank {})", rank, world_ranks_[rank]);
}

std::optional<std::uint32_t> LocalGroup::arrive(int rank, const Arrival& arrival) {
  MemberSlot& slot = slots_[rank];
  const std::uint32_t meeting = slot.meetings.load(std::memory_order_relaxed);
  slot.arrivals[meeting % 2] = arrival;
  slot.meetings.store(meeting + 1, std::memory_order_release);
  return barrier_.arrive();
}

std::vector<int> LocalGroup::missing(std::uint32_t meeting) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (slots_[rank].meetings.load(std::memory_order_acquire) == meeting) ranks.push_back(rank);
  }
  return ranks;
}

void LocalGroup::set_failure(const std::string& text) {
  const std::lock_guard lock(failure_mutex_);
  failure_ = text;
}

std::string LocalGroup::failure() {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

}  // namespace weft
