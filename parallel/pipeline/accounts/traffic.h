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

// Collectives of one kind that an action performs; `bytes` is the sum of all of them.
struct ActionCollective {
  CollectiveOp op = CollectiveOp::all_gather;
  Group group = Group::dp_shard;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool is_bound = false;

  bool operator==(const ActionCollective&) const = default;
};
// All collectives of one action in the tables, those over groups of one rank included, which exchange nothing.
std::vector<ActionCollective> collectives_of(const ProgramTables& tables, const Action& action);

// `rank` of the mesh for whose sizes the program was made. Groups of one rank exchange nothing.
Traffic traffic_of(const Program& program, const Mesh& mesh, int rank);

}  // namespace weft
