// Warnings of commands that run, plan or explain a training step: units that full_shard keeps unsharded because of the
// configuration.
#pragma once

#include "trainer/config/config.h"

namespace weft {

// Prints a warning on standard error for each sentence of kept_whole_warnings (chosen_timing.h). Under a launcher only
// the first process prints.
void warn_of_kept_whole(const Config& config);

}  // namespace weft
