// Sums over the pieces of a stage, or of the model, for the bounds of a search (search_bounds.h).
#pragma once

#include <cstdint>

#include "trainer/config/config.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/model_pieces.h"

namespace weft {

// Whether the order may overlap pairs of a forward and a backward, which hide exchanges of rows.
bool hides_rows(const Config& config);

struct StageSums {
  ModelPiece sum;               // without `units`
  double alike = 0.0;           // the part of `again` that waits for the gradient to arrive: all blocks except the last
  UnitSeconds units;            // least of a step, one after the other on their lanes
  UnitSeconds on_adapters;      // of these
  std::int64_t gradients = 0;   // accumulated unsharded until the last microbatch
  std::int64_t parameters = 0;  // kept from the first use to the last
};

StageSums sums_of(const Config& config, const ModelPieces& pieces, const StageBlocks& blocks, int stage);

// Sums over pipeline ranks.
struct UnitsOfModel {
  UnitSeconds seconds, on_adapters;  // least of a step, one after the other on their lanes
  std::int64_t parameters = 0;       // kept from the first use to the last
};

// In any order of so many stages.
UnitsOfModel units_of_model(const Config& config, const ModelPieces& pieces, int stages);

}  // namespace weft
