// The first half of solving: which units stay between two uses, and which gradients between two adds, within the
// budget. A sweep along the rank adds up everything that stays. Where the sum is too large, the candidate with the
// least saved channel time per byte and op is dropped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/pipeline/timing/problem.h"

namespace weft {

// `apart`: dropped, and not kept in spare room later either.
enum class Stay : std::uint8_t { apart, dropped, island, kept };

// The fate of a unit after each read, and of a gradient after each add, until the next one.
struct TimingChoice {
  std::vector<Stay> reads, adds;  // by TimingTable::reads and adds; adds are never island

  bool operator==(const TimingChoice&) const = default;
};

struct SelectOptions {
  // Every gap leaves room for `lead` times the transfer that ends (or begins) it, so that transfers run beside compute.
  double lead = 1;
  double reduction_weight = 1;  // weight of a second of reduction, which has no deadline
  std::int64_t headroom = 0;    // bytes left free at every op
  bool pin_reductions = false;
  std::span<const float> read_weights = {}, add_weights = {};  // of single gaps, set by the search; empty: 1; 0: apart
};

// `ends`: the expected end of each op of the rank, bubbles included, in seconds.
TimingChoice select_stays(const TimingRank& rank, const TimingTable& table, std::span<const double> ends,
                          const SelectOptions& options);

}  // namespace weft
