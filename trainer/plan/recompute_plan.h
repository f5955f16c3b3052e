// What blocks keep of a microbatch where they are made again in backward (training.recompute = "full").
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/plan/stage_plan.h"

namespace weft {

struct KeptBySegment {
  // The first segment of the region that it is part of, by place in the stage; absent where its forward keeps all.
  std::optional<int> region = {};
  std::int64_t bytes = 0;  // per microbatch, from its forward on
};
// By segment of the stage. A region is a block: segments of one scope whose forward can run again. Embedding and head
// keep what they keep: one has next to nothing, the other's backward follows its forward at once.
std::vector<KeptBySegment> kept_by_segments(const Config& config, const PlannedBoundary& boundary,
                                            const PlannedStage& stage);

// Puts the same into the program's entries of the stage's segments, and the collectives of R: those of the forward but
// for what is done once. `first_segment`: the place of the first of them in the program's table.
void add_regions(const std::vector<KeptBySegment>& kept, int first_segment, std::span<ProgramSegment> entries);

}  // namespace weft
