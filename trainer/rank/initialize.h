// Initial weights: a function of the run's seed, a parameter's global name and the global index of each element. So
// every layout starts from the same model.
#pragma once

#include <cstdint>

#include "parallel/shard/unit.h"

namespace weft {

struct Initialization {
  std::uint64_t seed = 0;
  int threads = 1;  // host threads that draw at once; they do not change the values
};

// Fills the rows that a rank owns, through at most 8 MiB of host memory, or one row if a row is larger. Waits for the
// device.
void initialize_rows(Stream& stream, const OwnedRows& rows, const Initialization& how);

}  // namespace weft
