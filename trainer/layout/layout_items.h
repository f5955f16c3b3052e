// What the pieces of a model ask of a rank, as the automatic layout weighs them.
#pragma once

#include "trainer/config/config.h"
#include "trainer/layout/automatic_layout.h"

namespace weft {

// Costs are modelled: matrix-product operations of a forward (stage_layout.h). Bytes are those that a rank would hold
// with everything of a unit there at once, and at least, from the plan of a stage with one block of each kind. Units
// are taken to hold one block at most.
LayoutItems modelled_items(const Config& config);

// The same with the seconds of a microbatch, forward and backward, that the table of pipeline.costs gives where it
// names one. Throws Error (request) with what is wrong with the file.
LayoutItems layout_items(const Config& config);

}  // namespace weft
