// Initial weights: a function of the run's seed, a parameter's global name and the global index of each element, so any
// layout starts from the same model.
#pragma once

#include <cstdint>

#include "parallel/shard/unit.h"

namespace weft {

struct Initialization {
  std::uint64_t seed = 0;
  int threads = 1;  // of the host that draw at once; they change nothing but the time it takes
};

// Fills the rows that a rank owns, through 8 MiB of host memory at most where a row is not larger. Waits for the
// device.
void initialize_rows(Stream& stream, const OwnedRows& rows, const Initialization& how);

}  // namespace weft
