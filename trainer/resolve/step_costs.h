// The tables of a step's program, and the costs of its actions (parallel/pipeline/simulation/cost_model.h).
#pragma once

#include <vector>

#include "parallel/pipeline/simulation/cost_model.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "trainer/config/config.h"
#include "trainer/config/hardware_table.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// All stages, reductions in flight and the update, with sizes as seen from a rank's coordinates.
ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at);
// The same for a given result of stage_layout().
ProgramTables program_tables(const Config& config, const Mesh& mesh, const Coordinates& at,
                             const std::vector<StageBlocks>& layout);

// By segment of `tables`, for one microbatch on one rank: the matrix products of step_flops.h, with routed tokens
// shared evenly. The gradient of each factor of a product costs as much as the forward. Attention scores have no
// weights, so both their gradients count as input gradient. A segment with frozen units only has no weight gradient.
// The embedding copies and a passage hands on: both cost 0.
//
// Operations count at the peak rate of the compute dtype. Products in float8 and the rounding of their factors count as
// many operations as take their time. Such products run at the peak rate in 8 bits and rounding at the rate of the
// memory. Hardware without a figure for its memory has no time for rounding.
//
// A block computes its shared expert while rows travel to the experts, without the rounding of its factors. Lanes of
// the hardware "cpu" take turns, so nothing runs beside an exchange there. Throws Error (request) if the hardware has
// no products in 8 bits.
std::vector<SegmentFlops> timed_flops(const Config& config, const ProgramTables& tables, const Hardware& hardware);

// From a model of the hardware. Throws Error (request) for a group without a link.
ProgramCosts modelled_costs(const Config& config, const Mesh& mesh, const ProgramTables& tables,
                            const Hardware& hardware);
// As pipeline.costs says: from the table of a file, or from the model. Throws Error (request) with the faults of the
// file.
ProgramCosts step_costs(const Config& config, const Mesh& mesh, const ProgramTables& tables, const Hardware& hardware);

// Gives copies to host memory that a table has no time for the time of the bus.
void time_host_copies(const ProgramTables& tables, const Hardware& hardware, ProgramCosts& costs);

// The channels of the lanes on the run's device.
LaneChannels lane_channels(const Config& config);

}  // namespace weft
