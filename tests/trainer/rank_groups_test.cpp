// One communicator for each pair of a lane and a group that works on it. Messages have one for those that no rank both
// sends and receives.
#include "trainer/rank/rank_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "parallel/comm/local.h"
#include "parallel/comm/lone_communicator.h"
#include "tests/parallel/cpu_rank.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

// Who works where: segments on the compute lane, rows between experts on their own, units gathered and reduced side by
// side.
std::vector<std::pair<Lane, Group>> used_pairs() {
  std::vector<std::pair<Lane, Group>> pairs = {{Lane::exchange, Group::ep}};
  for (Group group : {Group::world, Group::tp, Group::cp, Group::etp, Group::tokens})
    pairs.emplace_back(Lane::compute, group);
  for (Group group : {Group::dp_shard_cp, Group::edp_shard}) pairs.emplace_back(Lane::gather, group);
  for (Group group :
       {Group::dp_shard_cp, Group::edp_shard, Group::dp_replicate, Group::edp_replicate, Group::tp, Group::tokens}) {
    pairs.emplace_back(Lane::reduce, group);
  }
  return pairs;
}

const Degrees all_axes{.pipeline = 2, .data_replicate = 2, .data_shard = 2, .context = 2, .tensor = 2, .expert = 2};

// Rank 0 of a pipeline and rank 1 send to each other.
constexpr const MessageLanes &activations_up = message_lanes[0], &gradients_down = message_lanes[3];
const Transfers both_ways = {{activations_up, {{0, 1}}}, {gradients_down, {{1, 0}}}};

TEST(RankGroups, HaveOneCommunicatorForEachLaneAndGroup) {
  const Mesh mesh(all_axes);
  run_local_ranks(mesh.world(), [&](Communicator& world) {
    CpuRank rank;
    RankGroups groups(world.rank(), mesh, {}, both_ways, rank.lanes, {}, groups_split_from(world));
    std::set<const Communicator*> distinct;
    for (const auto& [lane, group] : used_pairs()) {
      SCOPED_TRACE(fmt::format("{} on {}", name_of(group), name_of(lane)));
      Communicator& communicator = groups.on(lane, group);
      const std::vector<int> members = mesh.group_of(group, world.rank());
      EXPECT_EQ(communicator.group(), name_of(group));
      EXPECT_EQ(&communicator.stream(), &rank.lanes[lane]);
      ASSERT_EQ(communicator.size(), static_cast<int>(members.size()));
      EXPECT_EQ(members[static_cast<std::size_t>(communicator.rank())], world.rank());
      distinct.insert(&communicator);

      // Its members are those of the mesh, in the same order.
      std::int32_t own = world.rank();
      std::vector<std::int32_t> found(members.size());
      communicator.all_gather(TensorView(&own, DType::int32, 1, 1), view_of(std::span(found), communicator.size(), 1));
      EXPECT_TRUE(std::ranges::equal(found, members));
    }
    EXPECT_EQ(distinct.size(), used_pairs().size());

    const int here = mesh.coordinates(world.rank()).pp;
    for (const auto& [lanes, sends] : {std::pair(activations_up, here == 0), std::pair(gradients_down, here == 1)}) {
      const Lane lane = sends ? lanes.send : lanes.receive;
      Communicator& messages = groups.messages(lane, 1 - here);
      EXPECT_EQ(messages.group(), name_of(Group::pp));
      EXPECT_EQ(&messages.stream(), &rank.lanes[lane]);
      EXPECT_EQ(messages.rank(), here);
      EXPECT_TRUE(distinct.insert(&messages).second);
      EXPECT_THROW(groups.messages(sends ? lanes.receive : lanes.send, 1 - here), std::out_of_range);
    }
    EXPECT_THROW(groups.on(Lane::gather, Group::pp), std::out_of_range);
  });
}

// Context ranks share the units of dense blocks, or there are none. Experts have groups where there are experts.
TEST(RankGroups, AreMadeForGroupsWithUnits) {
  const auto gathering = [](const Degrees& degrees, bool experts) {
    std::set<Group> groups;
    CpuRank rank;
    PhaseClock clock;
    CommunicationCounters counters;
    const MakeGroup make = [&](Group group, const std::vector<int>& members, int place, Stream& stream) {
      if (&stream == &rank.lanes[Lane::gather]) groups.insert(group);
      return std::make_unique<DryCommunicator>("", place, static_cast<int>(members.size()), stream, counters, clock);
    };
    const RankGroups all(0, Mesh(degrees), {}, {}, rank.lanes, {}, make, experts);
    return groups;
  };
  EXPECT_EQ(gathering({.data_shard = 4}, false), (std::set{Group::dp_shard}));
  EXPECT_EQ(gathering({.data_shard = 4, .context = 2}, false), (std::set{Group::dp_shard_cp}));
  EXPECT_EQ(gathering({.data_shard = 4, .expert = 2}, true), (std::set{Group::dp_shard, Group::edp_shard}));
}

// A group's messages on one lane do not pass through those on another.
TEST(RankGroups, KeepTheLanesOfAGroupApart) {
  const Mesh mesh(Degrees{.pipeline = 2});
  run_local_ranks(2, [&](Communicator& world) {
    CpuRank rank;
    RankGroups groups(world.rank(), mesh, {}, both_ways, rank.lanes, {}, groups_split_from(world));
    const bool first_rank = world.rank() == 0;
    Communicator &forward =
                     groups.messages(first_rank ? activations_up.send : activations_up.receive, first_rank ? 1 : 0),
                 &backward =
                     groups.messages(first_rank ? gradients_down.receive : gradients_down.send, first_rank ? 1 : 0);
    std::int32_t one = 1, two = 2;
    const TensorView first(&one, DType::int32, 1, 1), second(&two, DType::int32, 1, 1);
    if (first_rank) {
      two = 0;
      forward.send(first, 1);
      backward.receive(second, 1);
      EXPECT_EQ(two, 2);
    } else {
      one = 0;
      backward.send(second, 0);
      forward.receive(first, 0);
      EXPECT_EQ(one, 1);
    }
    groups.flush_messages();
  });
}

// Whatever the schedule, no rank of a transfer sends and receives, so that neither stands in front of the other. Every
// pair that exchanges has its lanes' communicator, and there are few.
TEST(RankGroups, NoRankSendsAndReceivesInOneTransfer) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 8, 3, 8)) {
      SCOPED_TRACE(described(schedule, input));
      const Program program = add_exchange(ordered(schedule, input));
      const Transfers transfers = transfers_of(program);
      std::map<Lane, std::set<std::pair<int, int>>> found, expected;
      std::map<Lane, int> of_lane;
      for (const auto& [lanes, pairs] : transfers) {
        EXPECT_LE(++of_lane[lanes.send], 3);
        std::set<int> senders, receivers;
        for (const auto& pair : pairs) {
          EXPECT_TRUE(found[lanes.send].insert(pair).second);
          senders.insert(pair.first);
          receivers.insert(pair.second);
        }
        for (int sender : senders) EXPECT_FALSE(receivers.contains(sender));
      }
      for (int rank = 0; rank < input.ranks; ++rank) {
        for (const Action& action : program.ranks[static_cast<std::size_t>(rank)]) {
          if (is_send(action.op)) expected[lane_of(program, action)].insert({rank, *action.peer});
        }
      }
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(RankGroups, RefuseAWorldOfAnotherSize) {
  const Mesh mesh(Degrees{.tensor = 2});
  run_local_ranks(1, [&](Communicator& world) {
    CpuRank rank;
    EXPECT_THROW(RankGroups(world.rank(), mesh, {}, {}, rank.lanes, {}, groups_split_from(world)), Error);
  });
}

}  // namespace
}  // namespace weft
