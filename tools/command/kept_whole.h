// Said by commands that run, plan or explain a training step: what full_shard keeps whole because the configuration
// asks.
#pragma once

#include "trainer/config/config.h"

namespace weft {

// A warning on standard error for each sentence of kept_whole_warnings (chosen_timing.h); under a launcher from the
// first process alone.
void warn_of_kept_whole(const Config& config);

}  // namespace weft
