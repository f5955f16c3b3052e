// What one rank communicates in a step, added up from its list and the tables before anything runs: by group and
// operation, counted as counters.h counts. It equals what the rank's communicators count afterwards, except where
// routing decides how much moves: there the tables know a bound.
#pragma once

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program.h"

namespace weft {

struct Traffic {
  CommunicationCounters exact;
  CommunicationCounters bounds;  // counts are exact, bytes at most these
};

// `rank` of the mesh, whose sizes the program has. Groups of one rank exchange nothing.
Traffic traffic_of(const Program& program, const Mesh& mesh, int rank);

}  // namespace weft
