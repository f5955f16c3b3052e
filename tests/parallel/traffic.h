// The communication of a step, added up from a rank's list and the tables of its program, to compare with what ranks
// count.
#pragma once

#include <map>
#include <string>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/accounts/accounts.h"

namespace weft {

// By group and operation, counted as in counters.h. It equals the counters of the rank's communicators after the step,
// except bytes that token routing decides: for these the tables know only a bound.
struct Traffic {
  CommunicationCounters exact;
  CommunicationCounters bounds;  // counts are exact, bytes are upper bounds
};

// `rank` of the mesh for whose sizes the program was made. Groups of one rank exchange nothing.
inline Traffic traffic_of(const Program& program, const Mesh& mesh, int rank) {
  std::map<Group, bool> is_alone;
  const auto alone = [&](Group group) {
    // Islands have at least two ranks, and a tie has two.
    if (group == Group::dp_island || group == Group::edp_island || group == Group::tied) return false;
    const auto [found, fresh] = is_alone.try_emplace(group, false);
    if (fresh) found->second = mesh.group_of(group, rank).size() == 1;
    return found->second;
  };
  Traffic traffic;
  for (const Action& action : program.ranks.at(mesh.coordinates(rank).pp)) {
    for (const ProgramCollective& part : collectives_of(program, action)) {
      if (part.count == 0 || alone(part.group)) continue;
      auto& counters = part.is_bound ? traffic.bounds : traffic.exact;
      CommunicationCount& sum = counters[{std::string(name_of(part.group)), part.op}];
      sum.count += part.count;
      sum.bytes += part.bytes;
    }
  }
  return traffic;
}

}  // namespace weft
