// What the stages and ranks of a layout hold, as the ledgers of a run count it: by dry runs (dry_run.h) of the first
// rank of each pipeline position. Bytes of one rank.
#pragma once

#include <vector>

#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

struct LayoutMemory {
  // By stage: what its forwards leave of a microbatch, once there was one before it: activations and the tables of
  // routing.
  std::vector<RoutedBytes> kept;
  // By pipeline rank: what there is before the first action, and the most of a step.
  std::vector<BucketBytes> before;
  std::vector<RoutedBytes> peak;
};

LayoutMemory layout_memory(const ResolvedRun& run);

}  // namespace weft
