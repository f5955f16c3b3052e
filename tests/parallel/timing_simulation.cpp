#include "tests/parallel/timing_simulation.h"

#include <algorithm>
#include <map>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// A rank while it runs: the progress of its lanes.
struct RunningRank {
  const TimingRank& rank;
  const TimingRankPlan& plan;
  TimingFactors factors;
  bool two_channels = false;
  SimulatedRank result = {};
  std::vector<char> done = {};              // by place of the channel
  double free[2] = {0, 0};                  // when each channel is free
  std::size_t next[2] = {0, 0};             // next place of each channel
  std::vector<std::vector<int>> needed_by;  // places, by op

  int lane_of(const TimedCollective& entry) const { return two_channels && entry.reduction ? 1 : 0; }
  int after(const TimedCollective& entry) const {
    return entry.reduction ? plan.reductions[entry.index].after : plan.gathers[entry.index].after;
  }
  int unit_of(const TimedCollective& entry) const {
    return entry.reduction ? plan.reductions[entry.index].unit : plan.gathers[entry.index].unit;
  }
  double seconds(std::size_t place) const {
    const TimedCollective& entry = plan.channel[place];
    const TimingUnit& unit = rank.units[unit_of(entry)];
    const double planned = entry.reduction ? unit.reduce_seconds : unit.gather_seconds;
    return factors.channel.empty() ? planned : planned * factors.channel[place];
  }

  // Whether a collective may start, and in `begin` when. False as long as it waits for something that has not ended.
  bool startable(const TimedCollective& entry, double& begin) const {
    const int trigger = after(entry);
    if (trigger >= static_cast<int>(result.ops.size())) return false;
    begin = std::max(begin, trigger < 0 ? 0 : result.ops[trigger].end);
    if (entry.reduction || !two_channels) return true;  // with one channel, its order suffices
    for (std::size_t place = 0; place < plan.channel.size(); ++place) {
      const TimedCollective& other = plan.channel[place];
      if (!other.reduction || plan.reductions[other.index].wait > trigger + 1) continue;
      if (!done[place]) return false;
      begin = std::max(begin, result.channel[place].end);
    }
    return true;
  }

  bool advance_channel(int lane) {
    bool moved = false;
    for (; next[lane] < plan.channel.size(); ++next[lane]) {
      const std::size_t place = next[lane];
      if (lane_of(plan.channel[place]) != lane) continue;
      double begin = free[lane];
      if (!startable(plan.channel[place], begin)) break;
      free[lane] = begin + seconds(place);
      result.channel[place] = {begin, free[lane]};
      done[place] = moved = true;
    }
    return moved;
  }

  bool advance_compute(const std::vector<RunningRank>& ranks) {
    bool moved = false;
    while (result.ops.size() < rank.ops.size()) {
      const std::size_t q = result.ops.size();
      const TimingOp& op = rank.ops[q];
      double begin = q == 0 ? 0 : result.ops[q - 1].end;
      if (op.producer_rank >= 0) {
        const auto& produced = ranks[op.producer_rank].result.ops;
        if (op.producer_op >= static_cast<int>(produced.size())) break;
        const bool here = &ranks[op.producer_rank] == this;
        const double there = here ? lane_end_behind(op) : produced[op.producer_op].end + op.transfer_seconds;
        begin = std::max(begin, there - op.seconds_before);
      }
      bool there = true;
      for (const int place : needed_by[q]) {
        there = there && done[place];
        begin = std::max(begin, result.channel[place].end);
      }
      if (!there) break;
      result.ops.push_back({begin, begin + op.seconds * (factors.ops.empty() ? 1 : factors.ops[q])});
      moved = true;
    }
    return moved;
  }

  // The end of an op's transfer on the exchange lane of its rank, where transfers follow their producers one by one.
  double lane_end_behind(const TimingOp& reader) const {
    std::map<int, double> transfers;
    for (const TimingOp& op : rank.ops) {
      if (op.producer_rank == reader.producer_rank) transfers[op.producer_op] = op.transfer_seconds;
    }
    double end = 0;
    for (const auto& [from, transfer] : transfers) {
      if (from <= reader.producer_op) end = std::max(end, result.ops[from].end) + transfer;
    }
    return end;
  }

  // Bytes come and go at times; at equal times they go first.
  std::int64_t peak_bytes() const {
    std::vector<std::pair<double, std::int64_t>> changes;
    const auto live = [&changes](double begin, double end, std::int64_t bytes) {
      changes.push_back({begin, bytes});
      changes.push_back({end, -bytes});
    };
    for (std::size_t q = 0; q < rank.ops.size(); ++q) {
      const std::int64_t now = rank.ops[q].activation_bytes;
      live(result.ops[q].begin, result.ops[q].end, now);
      if (q > 0) live(result.ops[q - 1].end, result.ops[q].begin, std::min(now, rank.ops[q - 1].activation_bytes));
    }
    std::vector<double> begun(plan.gathers.size()), reduced(plan.reductions.size());
    for (std::size_t place = 0; place < plan.channel.size(); ++place) {
      const auto [reduction, index] = plan.channel[place];
      (reduction ? reduced[index] : begun[index]) = reduction ? result.channel[place].end : result.channel[place].begin;
    }
    for (std::size_t i = 0; i < plan.gathers.size(); ++i) {
      const TimedGather& gather = plan.gathers[i];
      live(begun[i], result.ops[gather.until].end, rank.units[gather.unit].parameter_bytes);
    }
    for (std::size_t i = 0; i < plan.reductions.size(); ++i) {
      const TimedReduction& reduction = plan.reductions[i];
      live(result.ops[reduction.first].begin, reduced[i], rank.units[reduction.unit].gradient_bytes);
    }
    std::sort(changes.begin(), changes.end());
    std::int64_t bytes = 0, peak = 0;
    for (const auto& change : changes) peak = std::max(peak, bytes += change.second);
    return peak;
  }
};

}  // namespace

SimulatedTiming simulate_timing(const TimingProblem& problem, const TimingPlan& plan, const SimulateOptions& options) {
  std::vector<RunningRank> ranks;
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    RunningRank rank{problem.ranks[r],
                     plan.ranks[r],
                     options.factors.empty() ? TimingFactors{} : options.factors[r],
                     options.two_channels,
                     {},
                     {},
                     {},
                     {},
                     {}};
    rank.done.resize(rank.plan.channel.size());
    rank.result.channel.resize(rank.plan.channel.size());
    rank.needed_by.resize(rank.rank.ops.size() + 1);
    for (std::size_t place = 0; place < rank.plan.channel.size(); ++place) {
      const auto [reduction, index] = rank.plan.channel[place];
      const int op = reduction ? rank.plan.reductions[index].wait : rank.plan.gathers[index].need;
      rank.needed_by[op].push_back(static_cast<int>(place));
    }
    ranks.push_back(std::move(rank));
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (RunningRank& rank : ranks) {
      const bool collectives = rank.advance_channel(0) | rank.advance_channel(1);
      moved = rank.advance_compute(ranks) || collectives || moved;
    }
  }
  SimulatedTiming timing;
  for (RunningRank& rank : ranks) {
    const bool stands = rank.result.ops.size() < rank.rank.ops.size();
    if (stands || std::count(rank.done.begin(), rank.done.end(), 0) > 0) {
      fail("timing: the plan stands still at op {} of rank {}", rank.result.ops.size(), timing.ranks.size());
    }
    rank.result.peak_bytes = rank.peak_bytes();
    timing.makespan = std::max(
        {timing.makespan, rank.free[0], rank.free[1], rank.result.ops.empty() ? 0 : rank.result.ops.back().end});
    timing.ranks.push_back(std::move(rank.result));
  }
  return timing;
}

}  // namespace weft
