// A bare schedule described by `key=value` words, for commands that need no model.
#pragma once

#include <span>
#include <string>

#include "parallel/pipeline/program/program.h"

namespace weft {

struct ScheduleOnlyProgram {
  std::string title;  // "zbv, 4 ranks x 2 chunks, 8 microbatches"
  Program program;    // compiled and checked
};

// pipeline=N microbatches=N [chunks=N] [microbatch_group=N] [schedule=NAME]; the last word of a key wins.
// Throws Error (request).
ScheduleOnlyProgram schedule_only_program(std::span<const std::string> words);

}  // namespace weft
