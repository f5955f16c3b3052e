// The uses of every unit along one rank, linked, for selection and decoding. Flat, and built once per problem.
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
  std::vector<std::int64_t> core;                // by op: bytes that every plan needs
};

// With `pin_reductions` a gradient stays from its first add to its last, as if every op in between added to it.
TimingTable timing_table(const TimingRank& rank, bool pin_reductions);

}  // namespace weft
