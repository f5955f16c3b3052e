// The walk of a configured step, compiled as a run compiles it, for the first rank of a pipeline coordinate.
#pragma once

#include <vector>

#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"
#include "trainer/planning/walk.h"

namespace weft {

struct WalkedStep {
  Mesh mesh;
  int rank = 0;  // of the mesh
  Program program = {};
  BucketBytes state = {};  // bytes that the rank holds all step, by bucket
  std::vector<WalkLine> lines = {};
  WalkSummary summary = {};
};

// Throws Error (request) if the configuration cannot be compiled or has no such pipeline rank.
WalkedStep walk_step(const Config& config, int pipeline_rank, bool segments = false);

}  // namespace weft
