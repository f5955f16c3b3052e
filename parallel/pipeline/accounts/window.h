// For how long full parameters exist along one rank's list and what that costs: the numbers that a choice of units,
// residency and lookahead decides. Read off the list; nothing runs.
#pragma once

#include <cstdint>

#include "parallel/pipeline/program/program.h"

namespace weft {

struct ParameterWindow {
  // Full parameters, and parts that islands keep, when their sum is largest.
  std::int64_t peak_bytes = 0;
  // What is there from the forward of the first microbatch to its backward, though nobody reads it.
  std::int64_t held_bytes = 0;
  std::int64_t gathered_bytes = 0;  // by all gathers of the step
  int gathers = 0;                  // of both kinds
  int island_gathers = 0;
  int reductions = 0;

  bool operator==(const ParameterWindow&) const = default;
};
ParameterWindow parameter_window(const Program& program, int pipeline_rank);

}  // namespace weft
