// The uses of every unit along one rank, linked: what selection and decoding walk over. Flat and built once a problem.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/timing/problem.h"

namespace weft {

// One unit read, or added to, by one op.
struct TimingUse {
  int unit = 0, op = 0;
  int previous = -1, next = -1;  // uses of the same unit; -1: none
};

struct TimingTable {
  std::vector<TimingUse> reads, adds;            // in the order of ops; adds without frozen units
  std::vector<int> first_read_of, first_add_of;  // by op, and one more
  std::vector<std::int64_t> core;                // by op: what no plan can do without
};

// With `pin_reductions` a gradient stays from its first add to its last, as if every op between added to it.
TimingTable timing_table(const TimingRank& rank, bool pin_reductions);

}  // namespace weft
