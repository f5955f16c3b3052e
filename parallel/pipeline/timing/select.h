// The first half of solving: which units stay between two uses, and which gradients between two adds, so that all fit.
// A sweep along the rank: what stays is added up, and where there is too much, that goes which saves least of the
// channel's time for the bytes and ops that it takes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/pipeline/timing/problem.h"
#include "parallel/pipeline/timing/table.h"

namespace weft {

// `apart`: dropped, and not to be kept for want of a gather either.
enum class Stay : std::uint8_t { apart, dropped, island, kept };

// What becomes of a unit after each read, and of a gradient after each add, until the next one.
struct TimingChoice {
  std::vector<Stay> reads, adds;  // by TimingTable::reads and adds; of adds never island

  bool operator==(const TimingChoice&) const = default;
};

struct SelectOptions {
  // Every gap leaves room for so many times the transfer that ends (or begins) it, so that transfers run while others
  // compute.
  double lead = 1;
  double reduction_weight = 1;  // what a second of reduction counts, which has no deadline
  std::int64_t headroom = 0;    // bytes left free at every op
  bool pin_reductions = false;
  std::span<const float> read_weights = {}, add_weights = {};  // of single gaps, by the search; empty: 1; 0: apart
};

// `ends`: when each op of the rank is expected to end, bubbles included.
TimingChoice select_stays(const TimingRank& rank, const TimingTable& table, std::span<const double> ends,
                          const SelectOptions& options);

}  // namespace weft
