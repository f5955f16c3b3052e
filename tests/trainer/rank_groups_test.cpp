// One communicator for each pair of a lane and a group that works on it.
#include "trainer/rank_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "parallel/comm/local.h"
#include "tests/parallel/cpu_rank.h"

namespace weft {
namespace {

// Who works where: segments on the compute lane, rows between experts on their own, each direction of the pipeline on
// its own, units gathered and reduced side by side.
std::vector<std::pair<Lane, Group>> used_pairs() {
  std::vector<std::pair<Lane, Group>> pairs = {
      {Lane::exchange, Group::ep}, {Lane::activations_up, Group::pp}, {Lane::gradients_down, Group::pp}};
  for (Group group : {Group::world, Group::tp, Group::cp, Group::etp, Group::tokens})
    pairs.emplace_back(Lane::compute, group);
  for (Group group : {Group::dp_shard, Group::dp_shard_cp, Group::edp_shard}) pairs.emplace_back(Lane::gather, group);
  for (Group group : {Group::dp_shard, Group::dp_shard_cp, Group::edp_shard, Group::dp_replicate, Group::edp_replicate,
                      Group::tp, Group::tokens}) {
    pairs.emplace_back(Lane::reduce, group);
  }
  return pairs;
}

const Degrees all_axes{.pipeline = 2, .data_replicate = 2, .data_shard = 2, .context = 2, .tensor = 2, .expert = 2};

// Rank 0 of a pipeline and rank 1 send to each other.
const Transfers both_ways = {{Lane::activations_up, {{0, 1}}}, {Lane::gradients_down, {{1, 0}}}};

TEST(RankGroups, HaveOneCommunicatorForEachLaneAndGroup) {
  const Mesh mesh(all_axes);
  run_local_ranks(mesh.world(), [&](Communicator& world) {
    CpuRank rank;
    RankGroups groups(world, mesh, {}, both_ways, rank.lanes);
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
    EXPECT_THROW(groups.on(Lane::gather, Group::pp), std::out_of_range);
  });
}

// A group's messages on one lane do not pass through those on another.
TEST(RankGroups, KeepTheLanesOfAGroupApart) {
  const Mesh mesh(Degrees{.pipeline = 2});
  run_local_ranks(2, [&](Communicator& world) {
    CpuRank rank;
    RankGroups groups(world, mesh, {}, both_ways, rank.lanes);
    Communicator &forward = groups.on(Lane::activations_up, Group::pp),
                 &backward = groups.on(Lane::gradients_down, Group::pp);
    std::int32_t one = 1, two = 2;
    const TensorView first(&one, DType::int32, 1, 1), second(&two, DType::int32, 1, 1);
    if (world.rank() == 0) {
      forward.send(first, 1);
      backward.send(second, 1);
    } else {
      one = two = 0;
      backward.receive(second, 0);
      EXPECT_EQ(two, 2);
      forward.receive(first, 0);
      EXPECT_EQ(one, 1);
    }
    forward.flush();
    backward.flush();
  });
}

TEST(RankGroups, RefuseAWorldOfAnotherSize) {
  const Mesh mesh(Degrees{.tensor = 2});
  run_local_ranks(1, [&](Communicator& world) {
    CpuRank rank;
    EXPECT_THROW(RankGroups(world, mesh, {}, {}, rank.lanes), Error);
  });
}

}  // namespace
}  // namespace weft
