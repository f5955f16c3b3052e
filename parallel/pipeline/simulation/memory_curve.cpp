#include "parallel/pipeline/simulation/memory_curve.h"

#include <algorithm>
#include <deque>

#include "parallel/pipeline/program/pieces.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

void add(MemorySample& sum, const MemorySample& more, std::int64_t sign) {
  sum.unsharded_parameters += sign * more.unsharded_parameters;
  sum.unsharded_gradients += sign * more.unsharded_gradients;
  sum.communication += sign * more.communication;
  sum.activations += sign * more.activations;
  sum.kept += sign * more.kept;
  sum.workspace += sign * more.workspace;
}

MemorySample sample_of(const BucketBytes& bytes) {
  return {.unsharded_parameters = bytes[Bucket::unsharded_parameters],
          .unsharded_gradients = bytes[Bucket::unsharded_gradients],
          .communication = bytes[Bucket::communication],
          .activations = bytes[Bucket::activations] + bytes[Bucket::moe_routing],
          .kept = bytes[Bucket::sharded_parameters] + bytes[Bucket::replicated_parameters] +
                  bytes[Bucket::sharded_gradients] + bytes[Bucket::optimizer_state],
          .workspace = bytes[Bucket::workspace]};
}

// The walk of transient_peak.cpp over one rank's list, with a time for each allocation and release. Changes at equal
// times are in the order of the list. A RESHARD happens when the compute before it, and everything that takes turns
// with compute, has ended.
class TimedWalk {
 public:
  TimedWalk(const Program& program, const std::vector<SimulatedAction>& simulated, const LaneChannels& channels)
      : program_(program),
        simulated_(simulated),
        channels_(channels),
        pieces_(program),
        gathered_(program.units.size(), false),
        in_island_(program.units.size(), false),
        accumulating_(program.units.size(), false),
        reductions_(program.units.size(), 0),
        waits_(program.units.size(), 0) {}

  void run(const Action& action, std::size_t index) {
    const SimulatedAction& times = simulated_[index];
    if (is_compute(action.op)) compute(action, times);
    if (is_gather(action.op)) for_units_of(action, [&](std::size_t unit) { gather(unit, action.op, times.start); });
    if (is_reshard(action.op)) for_units_of(action, [&](std::size_t unit) { reshard(unit, action.op, computed_); });
    if (is_reduction(action.op)) for_units_of(action, [&](std::size_t unit) { reduce(unit, times); });
    if (action.op == Op::wait_reduction) for_units_of(action, [&](std::size_t unit) { give_up_through(unit); });
    if (action.op == Op::gradient_norm) give_up_until(0);
    if (channel_of(lane_of(program_, action)) == channel_of(Lane::compute)) computed_ = std::max(computed_, times.end);
  }

  // The same action with a ledger's counts. The difference between ledger and tables along the list applies while the
  // action runs, at the maximum, and after it. Before the first action everything is difference.
  void begin(const LedgerWalk& ledger) { first_ = differs_ = sample_of(ledger.before); }
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
    MemorySample most;
    for (const MemorySample& change : own) {
      add(listed_, change, 1);
      // Inputs that the pool gives up are released before an action that waits for other ranks.
      if (change.time <= start || (change.time < end && listed_.bytes() > most.bytes())) most = listed_;
    }
    MemorySample during = sample_of(ledger.most), after = sample_of(ledger.after);
    add(during, most, -1);
    add(after, listed_, -1);
    differ(*std::ranges::find(own, start, &MemorySample::time), during);
    if (end == start) own.push_back({.time = end});
    const auto last = std::ranges::find_if(own.rbegin(), own.rend(), [end](const auto& c) { return c.time == end; });
    differ(*last, after);
    changes_.insert(changes_.end(), own.begin(), own.end());
  }

  std::vector<MemorySample> samples() && {
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const MemorySample& one, const MemorySample& other) { return one.time < other.time; });
    MemorySample now = first_;
    std::vector<MemorySample> samples = {now};
    for (const MemorySample& change : changes_) {
      now.time = change.time;
      add(now, change, 1);
      samples.push_back(now);
    }
    return samples;
  }

 private:
  const ProgramUnit& entry(std::size_t unit) const { return program_.units[unit]; }
  // The segment of a piece; the piece must be a segment.
  const ProgramSegment& segment_of(std::size_t piece) const {
    return program_.segments[static_cast<std::size_t>(*pieces_[piece].segment)];
  }

  void change(double time, std::int64_t MemorySample::*bucket, std::int64_t bytes) {
    if (bytes == 0) return;
    changes_.push_back({.time = time});
    changes_.back().*bucket = bytes;
  }

  // From this change on a ledger holds `more` in addition.
  void differ(MemorySample& change, const MemorySample& more) {
    add(change, more, 1);
    add(change, differs_, -1);
    differs_ = more;
  }

  static void merge_times(std::vector<MemorySample>& changes) {
    std::ranges::stable_sort(changes, {}, &MemorySample::time);
    std::size_t kept = 0;
    for (std::size_t i = 1; i < changes.size(); ++i) {
      if (changes[i].time == changes[kept].time) {
        add(changes[kept], changes[i], 1);
      } else {
        changes[++kept] = changes[i];
      }
    }
    changes.resize(kept + 1);
  }

  int channel_of(Lane lane) const { return channels_.channel[static_cast<std::size_t>(lane)]; }

  void compute(const Action& action, const SimulatedAction& times) {
    const auto [begin, end] = pieces_.of(action);
    for (std::size_t piece = begin; piece < end; ++piece) {
      if (!pieces_[piece].segment) continue;
      const ProgramSegment& segment = segment_of(piece);
      const std::int64_t kept = program_.forward_only ? 0 : forward_bytes(segment);
      const std::int64_t again = segment.region ? segment.activation_bytes - segment.checkpoint_bytes : 0;
      if (action.op == Op::forward) {
        change(times.start, &MemorySample::activations, segment.activation_bytes);
        change(times.end, &MemorySample::activations, kept - segment.activation_bytes);
      }
      if (action.op == Op::recompute) change(times.start, &MemorySample::activations, again);
      if (!makes_weight_gradient(action.op)) continue;
      for (int index : segment.units) {
        const auto unit = static_cast<std::size_t>(index);
        if (accumulating_[unit]) continue;
        accumulating_[unit] = true;
        change(times.start, &MemorySample::unsharded_gradients, entry(unit).gradient_bytes);
      }
    }
    // An input gradient replaces activations by what the weight gradient will read, last piece first.
    for (std::size_t piece = end; piece-- > begin;) {
      if (!pieces_[piece].segment) continue;
      const ProgramSegment& segment = segment_of(piece);
      const std::int64_t grows = segment.pending_bytes - segment.activation_bytes;
      if (makes_input_gradient(action.op)) change(times.end, &MemorySample::activations, grows);
      if (makes_weight_gradient(action.op)) change(times.end, &MemorySample::activations, -segment.pending_bytes);
    }
  }

  void gather(std::size_t unit, Op op, double time) {
    if (entry(unit).replicated || gathered_[unit]) return;
    gathered_[unit] = true;
    change(time, &MemorySample::unsharded_parameters, entry(unit).unsharded_bytes);
    if (op == Op::unshard_secondary && in_island_[unit]) {
      in_island_[unit] = false;
      change(time, &MemorySample::unsharded_parameters, -entry(unit).island_bytes);
    }
  }

  void reshard(std::size_t unit, Op op, double time) {
    if (entry(unit).replicated || !gathered_[unit]) return;
    gathered_[unit] = false;
    if (op == Op::reshard_secondary) {
      in_island_[unit] = true;
      change(time, &MemorySample::unsharded_parameters, entry(unit).island_bytes);
    }
    change(time, &MemorySample::unsharded_parameters, -entry(unit).unsharded_bytes);
  }

  void reduce(std::size_t unit, const SimulatedAction& times) {
    ++reductions_[unit];
    const bool copies = entry(unit).reduce_input_bytes > 0;
    const std::int64_t accumulated = accumulating_[unit] ? entry(unit).gradient_bytes : 0;
    accumulating_[unit] = false;
    if (copies) {
      give_up_until(program_.reduce_inputs - 1);
      change(times.start, &MemorySample::communication, entry(unit).reduce_input_bytes);
      change(times.start, &MemorySample::unsharded_gradients, -accumulated);
    }
    change(times.start, &MemorySample::communication, entry(unit).reduce_part_bytes);
    change(times.end, &MemorySample::communication, -entry(unit).reduce_part_bytes);
    if (copies) {
      in_flight_.push_back(
          {unit, reductions_[unit], times.end, &MemorySample::communication, entry(unit).reduce_input_bytes});
    } else if (entry(unit).replicated) {
      change(times.end, &MemorySample::unsharded_gradients, -accumulated);
    } else if (accumulated > 0) {
      in_flight_.push_back({unit, reductions_[unit], times.end, &MemorySample::unsharded_gradients, accumulated});
    }
    give_up_until(program_.reduce_inputs);
  }

  // An input that the pool gives up is free once its reduction has ended and compute has come to this place of the
  // list.
  void give_up_until(int inputs) {
    while (static_cast<int>(in_flight_.size()) > inputs) {
      const Input& oldest = in_flight_.front();
      change(std::max(oldest.reduced, computed_), oldest.bucket, -oldest.bytes);
      in_flight_.pop_front();
    }
  }

  // Reductions end in order.
  void give_up_through(std::size_t unit) {
    const int waited_for = ++waits_[unit];
    for (std::size_t left = in_flight_.size(); left > 0; --left) {
      const Input& input = in_flight_[left - 1];
      if (input.unit != unit || input.number != waited_for) continue;
      return give_up_until(static_cast<int>(in_flight_.size() - left));
    }
  }

  template <typename Function>
  void for_units_of(const Action& action, Function function) const {
    if (action.unit) return function(static_cast<std::size_t>(*action.unit));
    for (std::size_t unit = 0; unit < program_.units.size(); ++unit) {
      if (entry(unit).stage == *action.stage) function(unit);
    }
  }

  struct Input {
    std::size_t unit = 0;
    int number = 0;  // number among the unit's reductions, from 1
    double reduced = 0.0;
    std::int64_t MemorySample::*bucket = nullptr;
    std::int64_t bytes = 0;
  };

  const Program& program_;
  const std::vector<SimulatedAction>& simulated_;
  const LaneChannels& channels_;
  PieceTable pieces_;
  std::vector<MemorySample> changes_;                      // differences, in the order of the list
  std::vector<bool> gathered_, in_island_, accumulating_;  // by unit
  std::vector<int> reductions_, waits_;                    // so far, by unit
  std::deque<Input> in_flight_;                            // oldest first
  double computed_ = 0.0;                                  // end of the compute so far
  MemorySample first_;                                     // before the first action
  MemorySample listed_, differs_;                          // along the list: sum of the changes; ledger minus that sum
};

}  // namespace

std::int64_t LedgerWalk::peak_bytes() const {
  std::int64_t peak = before.total();
  for (const LedgerAction& action : actions) peak = std::max(peak, action.most.total());
  return peak;
}

std::vector<MemorySample> memory_curve(const Program& program, const Simulation& simulation, int rank,
                                       const LaneChannels& channels, const LedgerWalk* ledger) {
  const auto& actions = program.ranks.at(static_cast<std::size_t>(rank));
  require(!ledger || ledger->actions.size() == actions.size(), "a ledger's walk has every action of the list");
  TimedWalk walk(program, simulation.ranks.at(static_cast<std::size_t>(rank)), channels);
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

}  // namespace weft
