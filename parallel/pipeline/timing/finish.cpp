// The use of room that is left in a decoded rank, and the plan that results.
#include <algorithm>
#include <functional>

#include "parallel/pipeline/timing/decode.h"

namespace weft {
namespace {
constexpr int margin = 3;  // ops by which triggers move forward and waits back, into room that is left
}

// Removing a collective never delays another one.
void TimingDecoder::merge_late() {
  struct Candidate {
    double worth = 0;
    bool reduction = false;
    int index = 0, first = 0, last = 0;
  };
  std::vector<Candidate> candidates;
  const auto consider = [&](double seconds, std::int64_t bytes, Candidate candidate) {
    if (find_full(candidate.first, candidate.last, bytes) >= 0) return;
    candidate.worth = seconds / (static_cast<double>(bytes) * std::max(1, candidate.last - candidate.first + 1));
    candidates.push_back(candidate);
  };
  for (int i = 0; i < static_cast<int>(intervals_.size()); ++i) {
    const Interval& interval = intervals_[i];
    if (interval.previous < 0 || interval.state == State::merged) continue;
    consider(interval.seconds, parameter_bytes(i),
             {0, false, i, intervals_[interval.previous].until + 1, interval.after});
  }
  for (int i = 0; i < static_cast<int>(gradients_.size()); ++i) {
    const Gradient& gradient = gradients_[i];
    if (gradient.next < 0) continue;
    consider(rank_.units[gradient.unit].reduce_seconds, gradient_bytes(i),
             {0, true, i, gradient.wait, gradients_[gradient.next].first - 1});
  }
  std::ranges::stable_sort(candidates, std::greater{}, &Candidate::worth);
  for (const Candidate& candidate : candidates) {
    const int i = candidate.index;
    const std::int64_t bytes = candidate.reduction ? gradient_bytes(i) : parameter_bytes(i);
    if (find_full(candidate.first, candidate.last, bytes) >= 0) continue;
    reserve(candidate.first, candidate.last, bytes);
    if (candidate.reduction) {
      reserve(candidate.last + 1, candidate.first - 1, -bytes);  // both were counted in these ops
      gradients_[i].merged = true;
    } else {
      intervals_[i].state = State::merged;
    }
  }
  // Roots are computed anew along the rank: an interval merged late may stand between others.
  for (int i = 0; i < static_cast<int>(intervals_.size()); ++i) {
    Interval& interval = intervals_[i];
    interval.root = i;
    if (interval.state == State::merged) merge(i);
  }
  for (Gradient& gradient : gradients_) {
    if (gradient.merged) gradients_[gradient.next].first = gradient.first;
  }
  std::erase_if(channel_, [this](const TimedCollective& entry) {
    return entry.reduction ? gradients_[entry.index].merged : intervals_[entry.index].state == State::merged;
  });
}

// A margin against times that differ from the expected ones: compute waits later for a reduction, and gathers are
// triggered earlier. A trigger before that of the predecessor in the channel would gain a gather nothing.
void TimingDecoder::extend() {
  const int ops = static_cast<int>(rank_.ops.size());
  for (const TimedCollective& entry : channel_) {
    if (!entry.reduction) continue;
    Gradient& gradient = gradients_[entry.index];
    for (int steps = 0; steps < margin && gradient.wait < ops; ++steps) {
      if (load_[gradient.wait] + gradient_bytes(entry.index) > rank_.budget) break;
      load_[gradient.wait++] += gradient_bytes(entry.index);
    }
  }
  int predecessor = -1;
  for (const TimedCollective& entry : channel_) {
    if (!entry.reduction) {
      Interval& interval = intervals_[entry.index];
      const int gone = interval.previous < 0 ? -1 : intervals_[intervals_[interval.previous].root].until;
      const int earliest = std::max({predecessor, gone, interval.after - margin});
      while (interval.after > earliest && load_[interval.after] + parameter_bytes(entry.index) <= rank_.budget) {
        load_[interval.after--] += parameter_bytes(entry.index);
      }
    }
    predecessor = std::max(predecessor, entry.reduction ? gradients_[entry.index].last : intervals_[entry.index].after);
  }
}

TimingRankPlan TimingDecoder::finish() {
  const int ops = static_cast<int>(rank_.ops.size());
  for (Held& held : held_) {
    if (!held.issued) issue_reduction(held, ops);
    gradients_[held.gradient].wait = ops;
    reserve(held.reserved_to + 1, ops - 1, gradient_bytes(held.gradient));
  }
  merge_late();
  extend();

  TimingRankPlan plan;
  std::vector<int> index_of_interval(intervals_.size()), index_of_gradient(gradients_.size());
  for (std::size_t i = 0; i < intervals_.size(); ++i) {
    const Interval& interval = intervals_[i];
    if (interval.state == State::merged) continue;
    index_of_interval[i] = static_cast<int>(plan.gathers.size());
    plan.gathers.push_back({interval.unit, interval.after, interval.need, interval.until});
  }
  for (const int i : gradients_by_last_) {
    const Gradient& gradient = gradients_[i];
    if (gradient.merged) continue;
    index_of_gradient[i] = static_cast<int>(plan.reductions.size());
    plan.reductions.push_back({gradient.unit, gradient.first, gradient.last, gradient.wait});
  }
  for (const auto& [reduction, index] : channel_) {
    plan.channel.push_back({reduction, (reduction ? index_of_gradient : index_of_interval)[index]});
  }
  return plan;
}

}  // namespace weft
