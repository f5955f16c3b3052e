// Lower bounds of the time and memory of a choice of a search, without its program. They are sums over pieces of the
// model (model_pieces.h), and a walk through the order of the pipeline's stages. A bound never exceeds the value of
// plan_run(), so a choice with a bound above a limit can be skipped.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/model_pieces.h"

namespace weft {

struct LeastTaken {
  double seconds = 0.0;
  std::int64_t static_bytes = 0;  // of the fullest rank
  std::int64_t bytes = 0;         // and kept bytes of microbatches, gradients and parameters
};

// Each of these bounds costs more than the one before.
// For any order of at most so many stages, and any layout: the mean over pipeline ranks.
LeastTaken least_of_any_order(const Config& config, const ModelPieces& pieces, int stages);
// Seconds for any layout in any order with stages, parts and overlaps as the configuration's. A rank waits until the
// first microbatch has reached it, and others for the last one to come back.
double seconds_of_pipeline(const Config& config, const ModelPieces& pieces);
// Both.
LeastTaken least_of_any_layout(const Config& config, const ModelPieces& pieces);
// For these stages in any order that the schedule makes. `bytes` are static ones.
LeastTaken least_of_any_list(const Config& config, const ModelPieces& pieces, const std::vector<StageBlocks>& layout);
// For these stages in the order of the configuration.
LeastTaken least_taken(const Config& config, const ModelPieces& pieces, const std::vector<StageBlocks>& layout);

}  // namespace weft
