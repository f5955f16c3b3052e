// A configuration for a bench, which neither starts from nor leaves files in the directories of a run.
#pragma once

#include "trainer/config/config.h"

namespace weft {

// Without checkpoints and traces.
inline Config without_files(Config config) {
  config.checkpoint = {};
  config.checkpoint.resume = false;
  config.profiling = {};
  return config;
}

}  // namespace weft
