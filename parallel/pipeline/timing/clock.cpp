#include "parallel/pipeline/timing/clock.h"

#include <algorithm>
#include <map>

#include "parallel/runtime/error.h"

namespace weft {

TimingChannel timing_channel(const TimingRank& rank, const TimingRankPlan& plan) {
  TimingChannel channel;
  channel.after.reserve(plan.channel.size());
  channel.seconds.reserve(plan.channel.size());
  channel.op_waits.assign(rank.ops.size() + 1, -1);
  for (std::size_t place = 0; place < plan.channel.size(); ++place) {
    const auto [reduction, index] = plan.channel[place];
    int needed_by = 0;
    if (reduction) {
      const TimedReduction& entry = plan.reductions[index];
      channel.after.push_back(entry.after);
      channel.seconds.push_back(rank.units[entry.unit].reduce_seconds);
      needed_by = entry.wait;
    } else {
      const TimedGather& entry = plan.gathers[index];
      channel.after.push_back(entry.after);
      channel.seconds.push_back(rank.units[entry.unit].gather_seconds);
      needed_by = entry.need;
    }
    channel.op_waits[needed_by] = static_cast<int>(place);
  }
  channel.op_waits.pop_back();  // at the end of the step compute waits for all of them
  return channel;
}

TimingClock::TimingClock(const TimingProblem& problem) {
  int count = 0;
  for (const TimingRank& rank : problem.ranks) {
    first_op_.push_back(count);
    count += static_cast<int>(rank.ops.size());
  }
  producer_.reserve(count);
  for (const TimingRank& rank : problem.ranks) {
    for (const TimingOp& op : rank.ops) {
      producer_.push_back(op.producer_rank < 0 ? -1 : first_op_[op.producer_rank] + op.producer_op);
      transfer_.push_back(op.transfer_seconds);
      before_.push_back(op.seconds_before);
      seconds_.push_back(op.seconds);
    }
  }
  lane_before_.assign(producer_.size(), -1);
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const auto& ops = problem.ranks[r].ops;
    const int base = first_op_[r];
    std::map<int, int> lane;  // producer to op
    for (int q = 0; q < static_cast<int>(ops.size()); ++q) {
      if (ops[q].producer_rank == static_cast<int>(r)) lane[ops[q].producer_op] = q;
    }
    int before = -1;
    for (const auto& [producer, op] : lane) {
      if (before > producer) lane_before_[base + op] = base + before;
      before = op;
    }
  }
  std::vector<int> next(problem.ranks.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < next.size(); ++r) {
      const auto& ops = problem.ranks[r].ops;
      Stretch stretch{static_cast<int>(r), next[r], next[r]};
      for (; stretch.end < static_cast<int>(ops.size()); ++stretch.end) {
        const TimingOp& op = ops[stretch.end];
        if (op.producer_rank < 0) continue;
        const int done = op.producer_rank == stretch.rank ? stretch.end : next[op.producer_rank];
        if (op.producer_op >= done) break;
      }
      if (stretch.end == stretch.first) continue;
      next[r] = stretch.end;
      stretches_.push_back(stretch);
      moved = true;
    }
  }
  for (std::size_t r = 0; r < next.size(); ++r) {
    if (next[r] < static_cast<int>(problem.ranks[r].ops.size())) {
      fail("timing: op {} of rank {} waits for ops that wait for it", next[r], r);
    }
  }
}

double TimingClock::run(std::span<const TimingChannel> channels, std::span<double> ends,
                        std::span<double> rank_ends) const {
  struct LaneEnds {
    double compute = 0, channel = 0;  // when each lane is free
    int place = 0;                    // next place of the channel
  };
  std::vector<LaneEnds> lanes(first_op_.size());
  const auto advance = [](LaneEnds& lane, const TimingChannel& channel, const double* rank_end, int last) {
    for (; lane.place <= last; ++lane.place) {
      const int after = channel.after[lane.place];
      const double trigger = after < 0 ? 0 : rank_end[after];
      lane.channel = std::max(lane.channel, trigger) + channel.seconds[lane.place];
    }
  };
  for (const Stretch& stretch : stretches_) {
    LaneEnds lane = lanes[stretch.rank];
    const int base = first_op(stretch.rank);
    double* const rank_end = &ends[base];
    const TimingChannel* const channel = channels.empty() ? nullptr : &channels[stretch.rank];
    for (int q = stretch.first; q < stretch.end; ++q) {
      double begin = std::max(lane.compute, ready(base + q, ends));
      // Places that an earlier op waited for have ended; only the last place of this op is left to wait for.
      if (channel && channel->op_waits[q] >= lane.place) {
        advance(lane, *channel, rank_end, channel->op_waits[q]);
        begin = std::max(begin, lane.channel);
      }
      lane.compute = rank_end[q] = begin + seconds_[base + q];
    }
    lanes[stretch.rank] = lane;
  }
  double makespan = 0;
  for (std::size_t r = 0; r < lanes.size(); ++r) {
    if (!channels.empty()) {
      const TimingChannel& channel = channels[r];
      advance(lanes[r], channel, ends.data() + first_op_[r], static_cast<int>(channel.after.size()) - 1);
    }
    rank_ends[r] = std::max(lanes[r].compute, lanes[r].channel);
    makespan = std::max(makespan, rank_ends[r]);
  }
  return makespan;
}

}  // namespace weft
