// The communicators of one rank, one a group of the mesh and lane that uses it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program.h"
#include "parallel/runtime/lane.h"

namespace weft {

// Ranks of a shard group among which parameters stay after a forward (parallel/shard/unit.h).
struct Island {
  Group shard_group = Group::dp_shard;
  int ranks = 0;
  auto operator<=>(const Island&) const = default;
};

// Which ranks of a pipeline send to which, by lane.
using Transfers = std::map<Lane, std::set<std::pair<int, int>>>;
Transfers transfers_of(const Program& program);

// The pipeline ranks with the copies of a tied weight, where they are two.
using TiedRanks = std::optional<std::pair<int, int>>;
TiedRanks tied_ranks_of(const ProgramTables& tables);

// Makes the communicator of a group with these members, among which the rank has this place.
using MakeGroup = std::function<std::unique_ptr<Communicator>(Group group, const std::vector<int>& members, int place,
                                                              Stream& stream)>;
// By splitting the world, which outlives what is made: collective over it.
MakeGroup groups_split_from(Communicator& world);

class RankGroups {
 public:
  // Every rank builds its groups in the same order. `transfers`: the messages of the step, the same on all ranks; who
  // sends to whom is connected. `lanes` outlive the groups. `tied`: the same on all ranks; those of other pipeline
  // positions are alone in their group.
  RankGroups(int rank, const Mesh& mesh, const std::set<Island>& islands, const Transfers& transfers, Lanes& lanes,
             const TiedRanks& tied, const MakeGroup& make);
  // From the world, which outlives the groups.
  RankGroups(Communicator& world, const Mesh& mesh, const std::set<Island>& islands, const Transfers& transfers,
             Lanes& lanes, const TiedRanks& tied = {});

  // A group's calls on one lane. Which pairs exist is the table in rank_groups.cpp.
  Communicator& on(Lane lane, Group group) { return *groups_.at({lane, group}); }
  // The lanes of Group::pp.
  const Transfers& transfers() const { return transfers_; }
  // On the gather lane.
  Communicator& island(const Island& island) { return *islands_.at(island); }

 private:
  Transfers transfers_;
  std::map<std::pair<Lane, Group>, std::unique_ptr<Communicator>> groups_;
  std::map<Island, std::unique_ptr<Communicator>> islands_;
};

}  // namespace weft
