#include "parallel/comm/local_barrier.h"

namespace weft {
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

}  // namespace weft
