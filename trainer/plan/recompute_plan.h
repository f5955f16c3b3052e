// Bytes that blocks keep of a microbatch if their backward recomputes them (training.recompute = "full").
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/plan/stage_plan.h"

namespace weft {

struct KeptBySegment {
  // Index in the stage of the first segment of the segment's region; absent if the forward keeps all activations.
  std::optional<int> region = {};
  std::int64_t bytes = 0;  // per microbatch, from the segment's forward on
};
// By segment of the stage. A region is a block: segments of one scope whose forward can be recomputed. Embedding and
// head keep their activations: the embedding has almost none, and the head's backward follows its forward at once.
std::vector<KeptBySegment> kept_by_segments(const Config& config, const PlannedBoundary& boundary,
                                            const PlannedStage& stage);

// Enters these into the program's entries of the stage's segments, with the collectives of R (recompute): those of the
// forward except the ones done once. `first_segment`: index of the stage's first segment in the program's table.
void add_regions(const std::vector<KeptBySegment>& kept, int first_segment, std::span<ProgramSegment> entries);

}  // namespace weft
