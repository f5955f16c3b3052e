// The clock of reshard timing: the end of every op under a plan. Each rank has a compute lane and one channel, both in
// order. The time is linear in ops and collectives. The search runs it thousands of times, so all its data is flat.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

// One rank's plan in the form that the clock reads.
struct TimingChannel {
  std::vector<int> after;       // by place
  std::vector<double> seconds;  // by place
  std::vector<int> op_waits;    // by op: the last place of the channel that the op waits for; -1: none
};
TimingChannel timing_channel(const TimingRank& rank, const TimingRankPlan& plan);

class TimingClock {
 public:
  // Throws Error (failure) if ops wait for each other in a circle.
  explicit TimingClock(const TimingProblem& problem);

  // A run of a rank's ops with all their producers before it. Stretches are in an order in which any plan may run.
  struct Stretch {
    int rank = 0, first = 0, end = 0;
  };
  std::span<const Stretch> stretches() const { return stretches_; }
  int first_op(int rank) const { return first_op_[rank]; }
  int ops() const { return static_cast<int>(producer_.size()); }
  std::span<const double> seconds() const { return seconds_; }
  // When the op may begin for its producer, in seconds; 0 without one. `ends` is by op over all ranks.
  double ready(int op, std::span<const double> ends) const {
    return producer_[op] < 0 ? 0 : arrival(op, ends) - before_[op];
  }

  // Fills `ends` (of all ops) and `rank_ends` (later of compute and channel) and returns the makespan, all in seconds.
  // Without channels: the times of the schedule alone.
  double run(std::span<const TimingChannel> channels, std::span<double> ends, std::span<double> rank_ends) const;

 private:
  // When the data of the op's producer is there.
  double arrival(int op, std::span<const double> ends) const {
    const double lane_free = lane_before_[op] < 0 ? 0 : arrival(lane_before_[op], ends);
    return std::max(ends[producer_[op]], lane_free) + transfer_[op];
  }

  std::vector<Stretch> stretches_;
  std::vector<int> first_op_;  // by rank
  std::vector<int> producer_;  // by op over all ranks; -1: none
  // By op with a producer on its own rank: the op that gets the transfer before on the exchange lane. -1: none, or it
  // cannot be under way when the producer ends.
  std::vector<int> lane_before_;
  std::vector<double> transfer_, before_, seconds_;
};

}  // namespace weft
