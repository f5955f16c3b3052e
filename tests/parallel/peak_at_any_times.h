// A bound for every memory curve, derived from the waits of the list alone.
#pragma once

#include <cstdint>

#include "parallel/pipeline/program/program.h"

namespace weft {

// The largest bytes of any curve of memory_curve (simulation/memory_curve.h), for any costs. Lanes run ahead of each
// other, so this is more than transient_peak, which the ledger counts. A gather that no RESHARD holds back begins
// before the compute in front of it has released its activations. Slow reductions keep their gradients while compute
// goes on, until compute needs an accumulator. If all lanes take turns (LaneChannels::serial), transient_peak is the
// bound.
std::int64_t peak_at_any_times(const Program& program, int rank);

}  // namespace weft
