// What must be there for a run to take its first step, looked over without its ranks and their devices. `weft check`
// and `weft train` do so alike: a run is refused by both or by neither. What only the machine tells, such as whether it
// has a GPU and room on it, a run finds out by itself.
#pragma once

#include <cstdint>

#include "parallel/pipeline/program/program.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/config_reader.h"

namespace weft {

struct CheckedStart {
  Program program;        // of rank 0
  RoutedBytes predicted;  // of the fullest rank
};
// The step alone: compiled, and walked through on the first rank of each pipeline coordinate.
CheckedStart check_step(const Config& config);

// The files of data, run.directory, and what the run begins with; then its step, compiled and walked through. Throws
// Error (request) with all that is wrong with the files, or with the first that is wrong with the step.
CheckedStart check_start(const ResolvedConfig& resolved);

}  // namespace weft
