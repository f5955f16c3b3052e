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
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/lane.h"
#include "trainer/plan/unit_policy.h"

namespace weft {

// Messages that share a communicator: on which lanes they run, and which rank of a pipeline sends to which.
struct Transfer {
  MessageLanes lanes;
  std::set<std::pair<int, int>> pairs;
};
// Calls of one communicator follow one another, on whatever lanes they are. So that a receive never stands in front of
// a send, no rank does both in one transfer: a pipeline's line of ranks takes two of them, a ring of odd length three.
using Transfers = std::vector<Transfer>;
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
  // Of Group::pp, on a lane of messages, with a rank of the pipeline at their other end.
  Communicator& messages(Lane lane, int peer) { return *message_groups_.at({lane, peer}); }
  // Waits until everything sent has been received.
  void flush_messages();
  // On the gather lane.
  Communicator& island(const Island& island) { return *islands_.at(island); }

 private:
  std::map<std::pair<Lane, Group>, std::unique_ptr<Communicator>> groups_;
  std::vector<std::unique_ptr<Communicator>> transfers_;  // in the order in which all ranks make them
  std::map<std::pair<Lane, int>, Communicator*> message_groups_;
  std::map<Island, std::unique_ptr<Communicator>> islands_;
};

}  // namespace weft
