#include "parallel/mesh/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Groups = std::vector<std::vector<int>>;

// `count` groups from the given ones on, each the one `period` places before it shifted by `shift`.
Groups continued(Groups groups, std::size_t count, int shift) {
  const std::size_t period = groups.size();
  while (groups.size() < count) {
    std::vector<int> next = groups[groups.size() - period];
    for (int& rank : next) rank += shift;
    groups.push_back(next);
  }
  return groups;
}

// Megatron's example: world 16, order tp-dp-pp.
TEST(Mesh, ListsTheGroupsOfSixteenRanksLikeMegatron) {
  const Mesh mesh({.pipeline = 4, .data_shard = 2, .tensor = 2});
  EXPECT_EQ(mesh.world(), 16);
  EXPECT_EQ(mesh.groups(Group::tp), continued({{0, 1}}, 8, 2));
  EXPECT_EQ(mesh.groups(Group::dp_shard), continued({{0, 2}, {1, 3}}, 8, 4));
  EXPECT_EQ(mesh.groups(Group::pp), (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(mesh.groups(Group::tokens), continued({{0, 1, 2, 3}}, 4, 4));
  EXPECT_EQ(mesh.group_of(Group::pp, 6), (std::vector<int>{2, 6, 10, 14}));
}

// Megatron's folding example: tp2 cp2 dp2 pp2 beside etp1 ep8 edp1 pp2.
TEST(Mesh, FoldsExpertsOverDataContextAndTensorRanks) {
  const Mesh mesh({.pipeline = 2, .data_shard = 2, .context = 2, .tensor = 2, .expert = 8});
  EXPECT_EQ(mesh.groups(Group::dp_shard), continued({{0, 4}, {1, 5}, {2, 6}, {3, 7}}, 8, 8));
  EXPECT_EQ(mesh.groups(Group::cp), continued({{0, 2}, {1, 3}}, 8, 4));
  EXPECT_EQ(mesh.groups(Group::ep), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}));
  EXPECT_EQ(mesh.groups(Group::pp), continued({{0, 8}}, 8, 1));
  EXPECT_EQ(mesh.groups(Group::edp), continued({{0}}, 16, 1));
}

TEST(Mesh, TwoLevelsOfDataParallelismSplitTheExpertsLikeTheDenseUnits) {
  const Mesh mesh({.data_replicate = 2, .data_shard = 2, .tensor = 2, .expert = 2});
  EXPECT_EQ(mesh.groups(Group::dp_shard), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups(Group::dp_replicate), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh.expert_replicas(), 2);
  EXPECT_EQ(mesh.groups(Group::edp), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(mesh.groups(Group::edp_shard), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups(Group::edp_replicate), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(Mesh, AnExpertGroupLargerThanAReplicaLeavesOneShardGroup) {
  // A replica has 2 ranks, an expert group 4: no two ranks hold the same experts within one replica.
  const Mesh mesh({.data_replicate = 4, .data_shard = 2, .expert = 4});
  EXPECT_EQ(mesh.expert_replicas(), 1);
  EXPECT_EQ(mesh.groups(Group::edp), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh.groups(Group::edp_shard), mesh.groups(Group::edp));
  EXPECT_EQ(mesh.groups(Group::edp_replicate), continued({{0}}, 8, 1));
}

// Two nodes of four ranks, in each of which two tensor ranks split an expert.
TEST(Mesh, HasTwoLevelsOfAnExpertGroupWhoseTokensAreRelayed) {
  const Degrees two_nodes{.data_shard = 8,
                          .expert = 4,
                          .expert_tensor = 2,
                          .expert_dispatch = ExpertDispatch::hierarchical,
                          .expert_nodes = 2};
  const Mesh mesh(two_nodes);
  EXPECT_EQ(mesh.groups(Group::ep), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(mesh.groups(Group::ep_inner), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups(Group::ep_relay), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  Degrees all_tokens = two_nodes;
  all_tokens.expert_dispatch = ExpertDispatch::all_gather;
  EXPECT_EQ(Mesh(all_tokens).groups(Group::ep_relay), mesh.groups(Group::ep));
  EXPECT_EQ(Mesh(all_tokens).steps(Group::ep_inner).count, 1);
  Degrees uneven = two_nodes;
  uneven.expert_nodes = 3;
  EXPECT_EQ(degree_errors(uneven),
            std::vector<std::string>{"expert_nodes 3 does not divide the 4 ranks of an expert group"});
}

std::vector<Degrees> meshes_up_to_4096_ranks() {
  std::vector<Degrees> all;
  const int small[] = {1, 2, 3, 8};
  for (int pp : {1, 3, 4})
    for (int replicate : {1, 2, 5})
      for (int shard : small)
        for (int cp : {1, 2})
          for (int tp : {1, 2, 4})
            for (int ep : small)
              for (int etp : {1, 2}) {
                const Degrees degrees{pp, replicate, shard, cp, tp, ep, etp};
                if (!degree_errors(degrees).empty()) continue;
                all.push_back(degrees);
                if (ep == 1) continue;
                all.push_back(degrees);
                all.back().expert_dispatch = ExpertDispatch::all_gather;
                if (ep != 8) continue;
                all.push_back(degrees);
                all.back().expert_dispatch = ExpertDispatch::hierarchical;
                all.back().expert_nodes = 4;
              }
  all.push_back({.pipeline = 8, .data_replicate = 4, .data_shard = 8, .context = 2, .tensor = 8, .expert = 64});
  all.push_back({.pipeline = 16, .data_shard = 32, .tensor = 8, .expert = 32, .expert_tensor = 4});
  return all;
}

int size_of_groups(const Mesh& mesh, Group group) {
  const Degrees& d = mesh.degrees();
  switch (group) {
    case Group::pp:
      return d.pipeline;
    case Group::dp_replicate:
      return d.data_replicate;
    case Group::dp_shard:
      return d.data_shard;
    case Group::cp:
      return d.context;
    case Group::tp:
      return d.tensor;
    case Group::edp:
      return d.expert_data();
    case Group::ep:
      return d.expert;
    case Group::ep_relay:
      return d.expert_relay();
    case Group::ep_inner:
      return d.expert_relay() == 1 ? 1 : d.expert / d.expert_relay();
    case Group::etp:
      return d.expert_tensor;
    case Group::edp_shard:
      return d.expert_data() / mesh.expert_replicas();
    case Group::edp_replicate:
      return mesh.expert_replicas();
    case Group::dp_shard_cp:
      return d.data_shard * d.context;
    case Group::tokens:
      return d.stage_ranks();
    case Group::world:
      return d.world();
    case Group::dp_island:
    case Group::edp_island:
    case Group::tied:
      break;  // of a size that units say
  }
  return 0;
}

TEST(Mesh, HasEveryRankInExactlyOneGroupOfEachKindAndGroupsOfOneSize) {
  const auto all = meshes_up_to_4096_ranks();
  ASSERT_GT(all.size(), 500u);
  int largest = 0;
  for (const Degrees& degrees : all) {
    const Mesh mesh(degrees);
    largest = std::max(largest, mesh.world());
    for (Group group : all_groups) {
      const Groups groups = mesh.groups(group);
      std::vector<int> seen;
      for (const auto& ranks : groups) {
        ASSERT_EQ(static_cast<int>(ranks.size()), size_of_groups(mesh, group)) << name_of(group);
        ASSERT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
        seen.insert(seen.end(), ranks.begin(), ranks.end());
      }
      ASSERT_EQ(mesh.group_of(group, groups.back().front()), groups.back()) << name_of(group);
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(static_cast<int>(seen.size()), mesh.world()) << name_of(group);
      for (int rank = 0; rank < mesh.world(); ++rank) ASSERT_EQ(seen[rank], rank) << name_of(group);
    }
  }
  EXPECT_EQ(largest, 4096);
}

TEST(Mesh, TurnsCoordinatesIntoRanksAndBack) {
  for (const Degrees& degrees : meshes_up_to_4096_ranks()) {
    const Mesh mesh(degrees);
    std::set<std::vector<int>> expert_cells;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const Coordinates at = mesh.coordinates(rank);
      ASSERT_EQ(mesh.rank_at(at.pp, at.dp_replicate, at.dp_shard, at.cp, at.tp), rank);
      ASSERT_EQ(mesh.data_index(rank), at.dp_replicate * degrees.data_shard + at.dp_shard);
      ASSERT_LT(at.edp, degrees.expert_data());
      ASSERT_LT(at.ep, degrees.expert);
      ASSERT_LT(at.etp, degrees.expert_tensor);
      expert_cells.insert({at.pp, at.edp, at.ep, at.etp});
    }
    ASSERT_EQ(static_cast<int>(expert_cells.size()), mesh.world());
  }
}

TEST(Mesh, ExpertShardsOfOneReplicaStayWithinTheDenseReplica) {
  for (const Degrees& degrees : meshes_up_to_4096_ranks()) {
    const Mesh mesh(degrees);
    if (mesh.expert_replicas() == 1) continue;
    for (const auto& ranks : mesh.groups(Group::edp_shard)) {
      for (int rank : ranks) {
        ASSERT_EQ(mesh.coordinates(rank).dp_replicate, mesh.coordinates(ranks.front()).dp_replicate);
      }
    }
  }
}

TEST(Degrees, AWorldThatIsNotTheProductIsRefusedWithTheArithmetic) {
  const auto errors = degree_errors({.pipeline = 4, .data_shard = 3}, 16);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0], "world 16 is not pipeline 4 x data_replicate 1 x data_shard 3 x context 1 x tensor 1 = 12");
}

TEST(Degrees, ExpertsThatDoNotDivideAStageAreRefusedWithTheArithmetic) {
  const auto errors = degree_errors({.data_shard = 3, .tensor = 2, .expert = 2, .expert_tensor = 2});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0],
            "expert 2 x expert_tensor 2 = 4 does not divide the 6 ranks of a stage (data_replicate 1 x data_shard 3 x "
            "context 1 x tensor 2)");
}

TEST(Degrees, EveryFaultIsToldAtOnce) {
  EXPECT_EQ(
      degree_errors({.pipeline = 0, .tensor = -2}),
      (std::vector<std::string>{"pipeline is 0; a degree is at least 1", "tensor is -2; a degree is at least 1"}));
  EXPECT_EQ(degree_errors({.data_shard = 3, .expert = 2}, 4).size(), 2u);
  EXPECT_TRUE(degree_errors({.data_shard = 4, .expert = 2}, 4).empty());
}

// Products of such degrees have no place in an int.
TEST(Degrees, MoreRanksThanAnyMeshHasAreRefusedBeforeTheyAreMultiplied) {
  constexpr int most = 2147483647;
  EXPECT_EQ(degree_errors({.pipeline = most, .data_replicate = most, .data_shard = most, .context = most}),
            (std::vector<std::string>{"pipeline 2147483647 x data_replicate 2147483647 x data_shard 2147483647 x "
                                      "context 2147483647 x tensor 1 is more than 1048576 ranks"}));
  EXPECT_EQ(degree_errors({.expert = 70000, .expert_tensor = 70000}),
            (std::vector<std::string>{"expert 70000 x expert_tensor 70000 is more than 1048576 ranks"}));
  EXPECT_EQ(degree_errors({.pipeline = -most, .tensor = most}).size(), 1u);
  EXPECT_TRUE(degree_errors({.data_shard = 4, .tensor = 2, .expert = 8}, 8).empty());
}

TEST(Degrees, AMeshOfWrongDegreesIsARequestError) {
  try {
    const Mesh mesh({.data_shard = 3, .expert = 2});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("does not divide the 3 ranks"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace weft
