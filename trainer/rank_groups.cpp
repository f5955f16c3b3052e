#include "trainer/rank_groups.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {

RankGroups::RankGroups(Communicator& world, const Mesh& mesh) : world_(world) {
  require(world.size() == mesh.world(), "the world has one rank per mesh position");
  for (Group group : all_groups) {
    if (group == Group::world) continue;
    const std::vector<int> members = mesh.group_of(group, world.rank());
    // The first member names the group; its position orders the ranks.
    const auto self = std::find(members.begin(), members.end(), world.rank());
    groups_[group] =
        world.split(members.front(), static_cast<int>(self - members.begin()), std::string(name_of(group)));
  }
}

}  // namespace weft
