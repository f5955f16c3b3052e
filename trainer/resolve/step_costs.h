// What the actions of a run's step cost by a model of the hardware (parallel/pipeline/simulation/cost_model.h).
#pragma once

#include <vector>

#include "parallel/pipeline/simulation/cost_model.h"
#include "trainer/config/config.h"

namespace weft {

// By segment of `tables`, for one microbatch on one rank: the matrix products of step_flops.h, routed tokens shared
// evenly. A product costs as much for the gradient of either of its factors as forward; scores of attention have no
// weights, so that both of theirs are in the input gradient. A segment whose units are all frozen has no weight
// gradient. The embedding copies and a passage hands on: none.
std::vector<SegmentFlops> segment_flops(const Config& config, const ProgramTables& tables);

// As pipeline.costs says: by the table of a file, or by a model of the hardware that [hardware] names. Throws Error
// (request) with what is wrong with the file.
ProgramCosts step_costs(const Config& config, const Mesh& mesh, const Coordinates& at);

// Sizes as seen from a rank's coordinates. Throws Error (request) for a group without a link.
ProgramCosts modelled_costs(const Config& config, const Mesh& mesh, const Coordinates& at,
                            const HardwareCosts& hardware);

}  // namespace weft
