// The communicators of one rank: one for each pair of a mesh group and a lane that uses the group.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/lane.h"
#include "trainer/plan/unit_policy.h"

namespace weft {

// Messages that share a communicator: their lanes, and the (sender, receiver) pairs of pipeline ranks.
struct Transfer {
  MessageLanes lanes;
  std::set<std::pair<int, int>> pairs;
};
// Calls of one communicator run one after another, on any lane. No rank both sends and receives in one transfer, so
// that a receive never delays a send. A line of pipeline ranks needs two transfers, a ring of odd length three.
using Transfers = std::vector<Transfer>;
Transfers transfers_of(const Program& program);

// The pipeline ranks with the copies of each tied weight, ascending; without weights whose copies are on one rank.
using TiedRanks = std::set<std::vector<int>>;
TiedRanks tied_ranks_of(const ProgramTables& tables);

// Makes the communicator of a group with these members; `place` is the rank's index among the members.
using MakeGroup = std::function<std::unique_ptr<Communicator>(Group group, const std::vector<int>& members, int place,
                                                              Stream& stream)>;
// Makes communicators by splitting the world: collective over the world, which outlives them.
MakeGroup groups_split_from(Communicator& world);

class RankGroups {
 public:
  // Every rank builds its groups in the same order. `transfers`: the messages of the step, the same on all ranks; each
  // (sender, receiver) pair gets connected. `lanes` outlive the groups. `tied`: the same on all ranks; a rank at any
  // other pipeline position is alone in its tied group. `experts`: whether the model has any, which have groups of
  // their own.
  RankGroups(int rank, const Mesh& mesh, const std::set<Island>& islands, const Transfers& transfers, Lanes& lanes,
             const TiedRanks& tied, const MakeGroup& make, bool experts = true);

  // The communicator of a group on one lane. The table in rank_groups.cpp lists the pairs; those without units are
  // left out.
  Communicator& on(Lane lane, Group group) { return *groups_.at({lane, group}); }
  // Whether tokens are relayed on the way to their experts: rows of choices then stay inside Group::ep_inner.
  bool relays_tokens() { return on(Lane::exchange, Group::ep_relay).size() > 1; }
  // The communicator of Group::pp on a message lane, for messages with pipeline rank `peer`.
  Communicator& messages(Lane lane, int peer) { return *message_groups_.at({lane, peer}); }
  // Waits until everything sent has been received.
  void flush_messages();
  // The communicator of Group::tied with the pipeline ranks `tied`, on the reduce lane.
  Communicator& tied(const std::vector<int>& tied) { return *tied_.at(tied); }
  // The communicator of an island, on the gather lane.
  Communicator& island(const Island& island) { return *islands_.at(island); }

 private:
  std::map<std::pair<Lane, Group>, std::unique_ptr<Communicator>> groups_;
  std::vector<std::unique_ptr<Communicator>> transfers_;  // in the order in which all ranks make them
  std::map<std::pair<Lane, int>, Communicator*> message_groups_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> tied_;  // by pipeline ranks
  std::map<Island, std::unique_ptr<Communicator>> islands_;
};

}  // namespace weft
