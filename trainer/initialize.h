// Initial weights: a function of the run's seed, a parameter's global name and the global index of each element, so any
// layout starts from the same model.
#pragma once

#include <cstdint>

#include "parallel/shard/unit.h"

namespace weft {

// Fills the rows that a rank owns. Waits for the device.
void initialize_rows(Stream& stream, const OwnedRows& rows, std::uint64_t seed);

}  // namespace weft
