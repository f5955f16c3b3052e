// The communicators of one rank, one a group of the mesh.
#pragma once

#include <map>
#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh.h"

namespace weft {

class RankGroups {
 public:
  // Collective over the world: every rank builds its groups in the same order.
  RankGroups(Communicator& world, const Mesh& mesh);

  Communicator& operator[](Group group) { return *groups_.at(group); }
  Communicator& world() { return world_; }

 private:
  Communicator& world_;
  std::map<Group, std::unique_ptr<Communicator>> groups_;
};

}  // namespace weft
