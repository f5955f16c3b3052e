// Bytes that the stages and ranks of a layout hold, as the ledgers of a run count them: from dry runs (dry_run.h) of
// the first rank of each pipeline position. Bytes of one rank.
#pragma once

#include <vector>

#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

struct LayoutMemory {
  // By stage: bytes of activations and routing tables that the forwards of a microbatch leave. The second microbatch is
  // counted if there is one.
  std::vector<RoutedBytes> kept;
  // By pipeline rank: bytes before the first action, and the peak of a step.
  std::vector<BucketBytes> before;
  std::vector<RoutedBytes> peak;
};

LayoutMemory layout_memory(const ResolvedRun& run);

}  // namespace weft
