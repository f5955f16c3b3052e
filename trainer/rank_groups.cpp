#include "trainer/rank_groups.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Each communicator once, in the order in which all ranks make them. A group that works on two lanes has one on each:
// calls of one communicator follow one another, those of two lanes need not.
constexpr std::pair<Lane, Group> communicators[] = {
    {Lane::compute, Group::world},    {Lane::compute, Group::tp},           {Lane::compute, Group::cp},
    {Lane::compute, Group::etp},      {Lane::compute, Group::tokens},       {Lane::exchange, Group::ep},
    {Lane::gather, Group::dp_shard},  {Lane::gather, Group::dp_shard_cp},   {Lane::gather, Group::edp_shard},
    {Lane::reduce, Group::dp_shard},  {Lane::reduce, Group::dp_shard_cp},   {Lane::reduce, Group::dp_replicate},
    {Lane::reduce, Group::edp_shard}, {Lane::reduce, Group::edp_replicate}, {Lane::reduce, Group::tp},
    {Lane::reduce, Group::tokens},
};

}  // namespace

std::set<Lane> transfers_of(const Program& program) {
  std::set<Lane> lanes;
  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) {
      if (is_send(action.op)) lanes.insert(lane_of(program, action));
    }
  }
  return lanes;
}

RankGroups::RankGroups(Communicator& world, const Mesh& mesh, const std::set<Island>& islands,
                       const std::set<Lane>& transfers, Lanes& lanes)
    : transfers_(transfers) {
  require(world.size() == mesh.world(), "the world has one rank per mesh position");
  // The first member names the group; its position orders the ranks.
  const auto split = [&](Group group, const std::vector<int>& members, Lane lane) {
    const auto self = std::find(members.begin(), members.end(), world.rank());
    return world.split(members.front(), static_cast<int>(self - members.begin()), std::string(name_of(group)),
                       lanes[lane]);
  };
  for (const auto& [lane, group] : communicators) {
    groups_[{lane, group}] = split(group, mesh.group_of(group, world.rank()), lane);
  }
  for (const Lane lane : transfers) {
    groups_[{lane, Group::pp}] = split(Group::pp, mesh.group_of(Group::pp, world.rank()), lane);
  }
  for (const Island& island : islands) {
    const Group name = island.shard_group == Group::edp_shard ? Group::edp_island : Group::dp_island;
    islands_[island] = split(name, mesh.island_of(island.shard_group, world.rank(), island.ranks), Lane::gather);
  }
}

}  // namespace weft
