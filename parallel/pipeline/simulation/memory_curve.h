// The bytes of a rank, along its list or along the time of a simulated step; and such a step with all its readings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/ledger.h"

namespace weft {

// A ledger's counts along a rank's list (trainer/rank/dry_run.h computes them).
struct LedgerAction {
  BucketBytes most;   // at the largest sum while the action runs
  BucketBytes after;  // after the action
};
struct LedgerWalk {
  BucketBytes before;                 // before the first action
  std::vector<LedgerAction> actions;  // of the whole list

  std::int64_t peak_bytes() const;
};

// Bytes on a rank from `time` on, until the next sample. Samples of one time are in the order of the list; all except
// the last of them are instants. Only a ledger has bytes that live all step (is_static), routing tables and workspace.
struct MemorySample {
  double time = 0.0;
  BucketBytes bytes = {};

  bool operator==(const MemorySample&) const = default;
};
// Bytes along time instead of along the list. With a ledger's walk through the list: all counts of the ledger, moved to
// the times of allocations and releases. Without one: the buckets of a LiveWalk (accounts/live_bytes.h), from the
// program's tables. If all lanes take turns, the largest sum is that of the list.
std::vector<MemorySample> memory_curve(const Program& program, const Simulation& simulation, int rank,
                                       const LaneChannels& channels = LaneChannels::own(),
                                       const LedgerWalk* ledger = nullptr);

// The integral of a curve of a whole step over its time, of what units hold: in byte-seconds.
using ByteSeconds = ByBucket<double>;
ByteSeconds byte_seconds(std::span<const MemorySample> curve);

// A simulated step with the readings that its pictures and tables need.
struct SimulatedStep {
  Simulation simulation = {};
  std::vector<RankTimes> times = {};                   // by pipeline rank
  std::vector<std::vector<MemorySample>> memory = {};  // by pipeline rank
  std::vector<std::int64_t> peak_bytes = {};           // along the list: of the ledger, or of the tables
  std::vector<ActionAt> critical_path = {};
  LaneChannels channels = LaneChannels::own();
};

// `ledgers`, by pipeline rank, give the bytes (memory_curve); without them the tables do. Throws Error (failure) if a
// rank waits forever.
SimulatedStep simulate_step(const Program& program, const ProgramCosts& costs,
                            const LaneChannels& channels = LaneChannels::own(),
                            std::span<const LedgerWalk> ledgers = {});

}  // namespace weft
