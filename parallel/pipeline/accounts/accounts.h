// Figures of the list of one rank before anything runs: the communication of each action, and how long full parameters
// exist in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

// All collectives of one action in the tables, those over groups of one rank included, which exchange nothing.
std::vector<ProgramCollective> collectives_of(const ProgramTables& tables, const Action& action);

// The numbers that units, residency and lookahead determine.
struct ParameterWindow {
  // Largest sum of full parameters and parts kept for islands.
  std::int64_t peak_bytes = 0;
  // Parameters that stay from the forward of the first microbatch to its backward, unused.
  std::int64_t held_bytes = 0;
  std::int64_t gathered_bytes = 0;  // payload of all gathers of the step
  int gathers = 0;                  // of both kinds
  int island_gathers = 0;
  int reductions = 0;

  bool operator==(const ParameterWindow&) const = default;
};
// Bytes of host memory that the rank's offloaded activations take: their blocks serve all of the same size.
std::int64_t host_activation_bytes(const Program& program, int pipeline_rank);

ParameterWindow parameter_window(const Program& program, int pipeline_rank);

}  // namespace weft
