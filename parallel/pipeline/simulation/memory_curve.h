// What a rank holds, along its list or along the time of a simulated step.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/ledger.h"

namespace weft {

// What a ledger counts along a rank's list (trainer/rank/dry_run.h finds it).
struct LedgerAction {
  BucketBytes most;   // at the largest sum while the action runs
  BucketBytes after;  // once it is over
};
struct LedgerWalk {
  BucketBytes before;                 // the first action
  std::vector<LedgerAction> actions;  // of the whole list

  std::int64_t peak_bytes() const;
};

// What is held on a rank from `time` on, until the next sample. Samples of one time are in the order of the list; all
// but the last of them are instants.
struct MemorySample {
  double time = 0.0;
  std::int64_t unsharded_parameters = 0, unsharded_gradients = 0, communication = 0, activations = 0;
  // Of a ledger alone: what lives all step (shards, replicated parameters, states), and workspace.
  std::int64_t kept = 0, workspace = 0;

  std::int64_t bytes() const {
    return unsharded_parameters + unsharded_gradients + communication + activations + kept + workspace;
  }
  bool operator==(const MemorySample&) const = default;
};
// Along time instead of along the list. With a ledger's walk through the list it is all that the ledger counts, moved
// to when things come and go; without one the buckets of transient_peak (check.h), as the program's tables have them.
// Where all lanes take turns its largest sum is that of the list.
std::vector<MemorySample> memory_curve(const Program& program, const Simulation& simulation, int rank,
                                       const LaneChannels& channels = LaneChannels::own(),
                                       const LedgerWalk* ledger = nullptr);

// The largest that any such curve can have, whatever things cost. Lanes run ahead of each other, so this is more than
// transient_peak, which is what the ledger counts: a gather that no RESHARD holds back begins before the compute in
// front of it has given its activations back, and slow reductions keep their gradients while compute goes on, until it
// needs an accumulator. Where all lanes take turns (LaneChannels::serial) transient_peak is the bound.
std::int64_t peak_at_any_times(const Program& program, int rank);

}  // namespace weft
