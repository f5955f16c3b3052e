#include "parallel/comm/local_group.h"

#include <fmt/ranges.h>

#include <numeric>

namespace weft {
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
