// What one rank communicates in a step, added up from its list and the tables before anything runs: by group and
// operation, counted as counters.h counts. It equals what the rank's communicators count afterwards, except where
// routing decides how much moves: there the tables know a bound.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

struct Traffic {
  CommunicationCounters exact;
  CommunicationCounters bounds;  // counts are exact, bytes at most these
};

// Collectives of one kind that an action performs; `bytes` is what all of them count.
struct ActionCollective {
  CollectiveOp op = CollectiveOp::all_gather;
  Group group = Group::dp_shard;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool is_bound = false;

  bool operator==(const ActionCollective&) const = default;
};
// All that the tables say of one action, over groups of one rank too, which exchange nothing.
std::vector<ActionCollective> collectives_of(const ProgramTables& tables, const Action& action);

// `rank` of the mesh, whose sizes the program has. Groups of one rank exchange nothing.
Traffic traffic_of(const Program& program, const Mesh& mesh, int rank);

}  // namespace weft
