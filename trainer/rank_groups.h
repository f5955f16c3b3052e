// The communicators of one rank, one a group of the mesh and lane that uses it.
#pragma once

#include <map>
#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh.h"
#include "parallel/runtime/lane.h"

namespace weft {

class RankGroups {
 public:
  // Collective over the world: every rank builds its groups in the same order. `world` and `lanes` outlive the groups.
  RankGroups(Communicator& world, const Mesh& mesh, Lanes& lanes);

  // A group's calls on one lane. Which pairs exist is the table in rank_groups.cpp.
  Communicator& on(Lane lane, Group group) { return *groups_.at({lane, group}); }

 private:
  std::map<std::pair<Lane, Group>, std::unique_ptr<Communicator>> groups_;
};

}  // namespace weft
