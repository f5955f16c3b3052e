// What the list of one rank amounts to in a step, before anything runs: its communication, and how long full parameters
// exist.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

// The communication of a step, added up from the list and the tables by group and operation, counted as in counters.h.
// It equals the counters of the rank's communicators after the step, except bytes that token routing decides: for these
// the tables know only a bound.
struct Traffic {
  CommunicationCounters exact;
  CommunicationCounters bounds;  // counts are exact, bytes are upper bounds
};

// All collectives of one action in the tables, those over groups of one rank included, which exchange nothing.
std::vector<ProgramCollective> collectives_of(const ProgramTables& tables, const Action& action);

// `rank` of the mesh for whose sizes the program was made. Groups of one rank exchange nothing.
Traffic traffic_of(const Program& program, const Mesh& mesh, int rank);

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
ParameterWindow parameter_window(const Program& program, int pipeline_rank);

}  // namespace weft
