#include "trainer/rank/rank_groups.h"

#include <algorithm>
#include <iterator>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Each communicator once, in the order in which all ranks make them. A group that works on two lanes has a communicator
// on each lane. Calls of one communicator run one after another, calls on two lanes may overlap. Either ep or its two
// levels are used; the others have one rank or are left out.
constexpr std::pair<Lane, Group> communicators[] = {
    {Lane::compute, Group::world},        {Lane::compute, Group::tp},          {Lane::compute, Group::cp},
    {Lane::compute, Group::etp},          {Lane::compute, Group::tokens},      {Lane::exchange, Group::ep},
    {Lane::exchange, Group::ep_relay},    {Lane::exchange, Group::ep_inner},   {Lane::gather, Group::dp_shard},
    {Lane::gather, Group::dp_shard_cp},   {Lane::gather, Group::edp_shard},    {Lane::reduce, Group::dp_shard},
    {Lane::reduce, Group::dp_shard_cp},   {Lane::reduce, Group::dp_replicate}, {Lane::reduce, Group::edp_shard},
    {Lane::reduce, Group::edp_replicate}, {Lane::reduce, Group::tp},           {Lane::reduce, Group::tokens},
};

// Whether units, of experts or not, are gathered and reduced by the group. A communicator costs memory and streams.
bool has_units(Group group, const Degrees& degrees, bool experts) {
  if (group == Group::dp_shard || group == Group::dp_shard_cp) return group == shard_group(degrees, Family::dense);
  return experts || (group != Group::edp_shard && group != Group::edp_replicate);
}

}  // namespace

Transfers transfers_of(const Program& program) {
  std::map<Lane, std::set<std::pair<int, int>>> pairs_of;  // by sending lane
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    for (const Action& action : program.ranks[rank]) {
      if (is_send(action.op)) pairs_of[lane_of(program, action)].insert({rank, *action.peer});
    }
  }
  Transfers transfers;
  for (const MessageLanes& lanes : message_lanes) {
    const std::size_t first = transfers.size();
    for (const auto& pair : pairs_of[lanes.send]) {
      const auto fits = [&](const Transfer& transfer) {
        return std::ranges::none_of(transfer.pairs, [&](const auto& other) {
          return other.first == pair.second || other.second == pair.first;
        });
      };
      auto transfer = std::find_if(transfers.begin() + static_cast<std::ptrdiff_t>(first), transfers.end(), fits);
      if (transfer == transfers.end()) transfer = transfers.insert(transfer, {lanes, {}});
      transfer->pairs.insert(pair);
    }
  }
  return transfers;
}

TiedRanks tied_ranks_of(const ProgramTables& tables) {
  TiedRanks tied;
  for (const ProgramUnit& unit : tables.units) {
    std::vector<int> ranks = tied_ranks(tables, unit);
    if (ranks.size() > 1) tied.insert(std::move(ranks));
  }
  return tied;
}

MakeGroup groups_split_from(Communicator& world) {
  // The first member is the split's color, a rank's place its key.
  return [&world](Group group, const std::vector<int>& members, int place, Stream& stream) {
    require(group != Group::world || std::ssize(members) == world.size(), "the world has one rank per mesh position");
    return world.split(members.front(), place, std::string(name_of(group)), stream);
  };
}

RankGroups::RankGroups(int rank, const Mesh& mesh, const std::set<Island>& islands, const Transfers& transfers,
                       Lanes& lanes, const TiedRanks& tied, const MakeGroup& make, bool experts) {
  const auto split = [&](Group group, const std::vector<int>& members, Lane lane) {
    const auto self = std::find(members.begin(), members.end(), rank);
    return make(group, members, static_cast<int>(self - members.begin()), lanes[lane]);
  };
  const bool relays = mesh.degrees().expert_relay() > 1;
  for (const auto& [lane, group] : communicators) {
    if ((relays && group == Group::ep) || !has_units(group, mesh.degrees(), experts)) continue;
    groups_[{lane, group}] = split(group, mesh.group_of(group, rank), lane);
  }
  const int here = mesh.coordinates(rank).pp;
  for (const auto& [ends, pairs] : transfers) {
    const bool receives = std::ranges::any_of(pairs, [&](const auto& pair) { return pair.second == here; });
    const Lane lane = receives ? ends.receive : ends.send;
    transfers_.push_back(split(Group::pp, mesh.group_of(Group::pp, rank), lane));
    transfers_.back()->connect(std::vector(pairs.begin(), pairs.end()));
    for (const auto& [from, to] : pairs) {
      if (from == here || to == here) {
        message_groups_[{lane, from == here ? to : from}] = transfers_.back().get();
      }
    }
  }
  for (const std::vector<int>& ranks : tied) {
    tied_[ranks] = split(Group::tied, mesh.tied_of(rank, ranks), Lane::reduce);
  }
  for (const Island& island : islands) {
    const Group name = island.shard_group == Group::edp_shard ? Group::edp_island : Group::dp_island;
    islands_[island] = split(name, mesh.island_of(island.shard_group, rank, island.ranks), Lane::gather);
  }
}

void RankGroups::flush_messages() {
  for (const auto& transfer : transfers_) transfer->flush();
}

}  // namespace weft
