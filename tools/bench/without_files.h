// A configuration for a bench, which neither starts from nor leaves files in the directories of a run.
#pragma once

#include "trainer/config/config.h"

namespace weft {

// Without checkpoints and traces.
inline Config without_files(Config config) {
  config.checkpoint = {};
  config.checkpoint.resume = config.checkpoint.at_end = false;
  // No folder is below a device: checkpoints of the configuration's own run are neither found nor in the way.
  config.checkpoint.directory = "/dev/null";
  config.profiling = {};
  return config;
}

}  // namespace weft
