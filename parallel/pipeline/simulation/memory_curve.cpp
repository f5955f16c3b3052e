#include "parallel/pipeline/simulation/memory_curve.h"

#include <algorithm>
#include <utility>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// The allocations and releases of one rank's list, each at its time. Changes at equal times are in the order of the
// list. "Compute has ended" includes everything that takes turns with compute.
class TimedWalk {
 public:
  TimedWalk(const Program& program, int rank, const std::vector<SimulatedAction>& simulated,
            const LaneChannels& channels)
      : program_(program), simulated_(simulated), channels_(channels), live_(program, rank) {}

  void run(const Action& action, std::size_t index) {
    const SimulatedAction& times = simulated_[index];
    for (const LiveChange& change : live_.next()) {
      changes_.push_back({.time = time_of(change, times)});
      changes_.back().bytes[change.bucket] = change.bytes;
    }
    if (channels_.with_compute(lane_of(program_, action))) computed_ = std::max(computed_, times.end);
  }

  // The same action with a ledger's counts. The difference between ledger and tables along the list applies while the
  // action runs, at the maximum, and after it. Before the first action everything is difference.
  void begin(const LedgerWalk& ledger) { first_ = differs_ = ledger.before; }
  void run(const Action& action, std::size_t index, const LedgerAction& ledger) {
    const std::size_t first = changes_.size();
    const SimulatedAction& times = simulated_[index];
    const double start = is_reshard(action.op) ? computed_ : times.start;
    run(action, index);
    const double end = is_reshard(action.op) ? computed_ : times.end;
    // One change per time, without the instants inside it.
    std::vector<MemorySample> own(changes_.begin() + static_cast<std::ptrdiff_t>(first), changes_.end());
    changes_.resize(first);
    own.push_back({.time = start});
    if (end > start) own.push_back({.time = end});
    merge_times(own);
    BucketBytes most;
    for (const MemorySample& change : own) {
      listed_ += change.bytes;
      // Inputs that the pool gives up are released before an action that waits for other ranks.
      if (change.time <= start || (change.time < end && listed_.total() > most.total())) most = listed_;
    }
    BucketBytes during = ledger.most, after = ledger.after;
    differ(std::ranges::find(own, start, &MemorySample::time)->bytes, during -= most);
    if (end == start) own.push_back({.time = end});
    const auto last = std::ranges::find_if(own.rbegin(), own.rend(), [end](const auto& c) { return c.time == end; });
    differ(last->bytes, after -= listed_);
    changes_.insert(changes_.end(), own.begin(), own.end());
  }

  std::vector<MemorySample> samples() && {
    std::ranges::stable_sort(changes_, {}, &MemorySample::time);
    std::vector<MemorySample> samples = {{.bytes = first_}};
    for (const MemorySample& change : changes_) {
      samples.push_back({change.time, samples.back().bytes});
      samples.back().bytes += change.bytes;
    }
    return samples;
  }

 private:
  double time_of(const LiveChange& change, const SimulatedAction& times) const {
    switch (change.when) {
      case LiveChange::When::start:
        return times.start;
      case LiveChange::When::end:
        return times.end;
      case LiveChange::When::computed:
        return computed_;
      case LiveChange::When::reduced:
        break;
    }
    return std::max(simulated_[change.reduction].end, computed_);
  }

  // From this change on a ledger holds `more` in addition.
  void differ(BucketBytes& change, const BucketBytes& more) {
    change += more;
    change -= std::exchange(differs_, more);
  }

  static void merge_times(std::vector<MemorySample>& changes) {
    std::ranges::stable_sort(changes, {}, &MemorySample::time);
    std::size_t kept = 0;
    for (std::size_t i = 1; i < changes.size(); ++i) {
      if (changes[i].time == changes[kept].time) {
        changes[kept].bytes += changes[i].bytes;
      } else {
        changes[++kept] = changes[i];
      }
    }
    changes.resize(kept + 1);
  }

  const Program& program_;
  const std::vector<SimulatedAction>& simulated_;
  const LaneChannels& channels_;
  LiveWalk live_;
  std::vector<MemorySample> changes_;  // differences, in the order of the list
  double computed_ = 0.0;              // end of the compute so far
  BucketBytes first_;                  // before the first action
  BucketBytes listed_, differs_;       // along the list: sum of the changes; ledger minus that sum
};

}  // namespace

std::int64_t LedgerWalk::peak_bytes() const {
  std::int64_t peak = before.total();
  for (const LedgerAction& action : actions) peak = std::max(peak, action.most.total());
  return peak;
}

std::vector<MemorySample> memory_curve(const Program& program, const Simulation& simulation, int rank,
                                       const LaneChannels& channels, const LedgerWalk* ledger) {
  const auto& actions = program.ranks.at(rank);
  require(!ledger || ledger->actions.size() == actions.size(), "a ledger's walk has every action of the list");
  TimedWalk walk(program, rank, simulation.ranks.at(rank), channels);
  if (ledger) walk.begin(*ledger);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (ledger) {
      walk.run(actions[i], i, ledger->actions[i]);
    } else {
      walk.run(actions[i], i);
    }
  }
  return std::move(walk).samples();
}

// Behind the last sample units hold nothing.
ByteSeconds byte_seconds(std::span<const MemorySample> curve) {
  ByteSeconds sum;
  for (std::size_t i = 1; i < curve.size(); ++i) {
    const MemorySample& from = curve[i - 1];
    const double seconds = curve[i].time - from.time;
    for (const Bucket bucket : unit_buckets) sum[bucket] += seconds * static_cast<double>(from.bytes[bucket]);
  }
  return sum;
}

SimulatedStep simulate_step(const Program& program, const ProgramCosts& costs, const LaneChannels& channels,
                            std::span<const LedgerWalk> ledgers) {
  SimulatedStep step{.simulation = simulate(program, costs, channels), .channels = channels};
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    const LedgerWalk* ledger = ledgers.empty() ? nullptr : &ledgers[rank];
    step.times.push_back(rank_times(program, step.simulation, rank, channels));
    step.memory.push_back(memory_curve(program, step.simulation, rank, channels, ledger));
    step.peak_bytes.push_back(ledger ? ledger->peak_bytes() : transient_peak(program, rank).bytes);
  }
  step.critical_path = critical_path(step.simulation);
  return step;
}

}  // namespace weft
