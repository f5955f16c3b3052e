// The communication of one rank in a step, added up from its list and the tables before anything runs: by group and
// operation, counted as in counters.h. It equals the counters of the rank's communicators after the step, except
// bytes that token routing decides: for these the tables know only a bound.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

struct Traffic {
  CommunicationCounters exact;
  CommunicationCounters bounds;  // counts are exact, bytes are upper bounds
};

// All collectives of one action in the tables, those over groups of one rank included, which exchange nothing.
std::vector<ProgramCollective> collectives_of(const ProgramTables& tables, const Action& action);

// `rank` of the mesh for whose sizes the program was made. Groups of one rank exchange nothing.
Traffic traffic_of(const Program& program, const Mesh& mesh, int rank);

}  // namespace weft
