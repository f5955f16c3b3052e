#include "parallel/mesh/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::int64_t largest_world = std::int64_t{1} << 20;

std::vector<int> members(const RankSteps& steps, int rank) {
  std::vector<int> ranks(steps.count);
  int member = rank - steps.place(rank) * steps.stride;
  for (int& next : ranks) next = std::exchange(member, member + steps.stride);
  return ranks;
}

}  // namespace

std::vector<std::string> degree_errors(const Degrees& d, std::optional<int> world) {
  std::vector<std::string> errors;
  const auto require_one = [&](const char* name, int degree) {
    if (degree < 1) errors.push_back(fmt::format("{} is {}; a degree is at least 1", name, degree));
  };
  for (const auto& [name, degree] : named_degrees) require_one(name, d.*degree);
  require_one("expert_nodes", d.expert_nodes);
  if (!errors.empty()) return errors;
  // Checked in 64 bits, so that no later product of degrees overflows.
  const std::string dense = fmt::format("pipeline {} x data_replicate {} x data_shard {} x context {} x tensor {}",
                                        d.pipeline, d.data_replicate, d.data_shard, d.context, d.tensor);
  std::int64_t ranks = 1;
  for (const int degree : {d.pipeline, d.data_replicate, d.data_shard, d.context, d.tensor}) {
    ranks *= degree;
    if (ranks > largest_world) return {fmt::format("{} is more than {} ranks", dense, largest_world)};
  }
  const std::string expert = fmt::format("expert {} x expert_tensor {}", d.expert, d.expert_tensor);
  if (std::int64_t{d.expert} * d.expert_tensor > largest_world) {
    return {fmt::format("{} is more than {} ranks", expert, largest_world)};
  }
  if (world && *world != d.world()) errors.push_back(fmt::format("world {} is not {} = {}", *world, dense, d.world()));
  if (d.stage_ranks() % (d.expert * d.expert_tensor) != 0) {
    errors.push_back(fmt::format("{} = {} does not divide the {} ranks of a stage ({})", expert,
                                 d.expert * d.expert_tensor, d.stage_ranks(),
                                 dense.substr(dense.find("data_replicate"))));
  }
  if (d.expert % d.expert_relay() != 0) {
    errors.push_back(
        fmt::format("expert_nodes {} does not divide the {} ranks of an expert group", d.expert_nodes, d.expert));
  }
  return errors;
}

Mesh::Mesh(const Degrees& degrees) : degrees_(degrees) {
  const auto errors = degree_errors(degrees);
  if (!errors.empty()) fail_request("{}", fmt::join(errors, "\n"));
}

Coordinates Mesh::coordinates(int rank) const {
  require(rank >= 0 && rank < world(), "a rank lies in its world");
  const auto place = [&](Group group) { return steps(group).place(rank); };
  return {.pp = place(Group::pp),
          .dp_replicate = place(Group::dp_replicate),
          .dp_shard = place(Group::dp_shard),
          .cp = place(Group::cp),
          .tp = place(Group::tp),
          .edp = place(Group::edp),
          .ep = place(Group::ep),
          .etp = place(Group::etp)};
}

int Mesh::rank_at(int pp, int dp_replicate, int dp_shard, int cp, int tp) const {
  const Degrees& d = degrees_;
  return (((pp * d.data_replicate + dp_replicate) * d.data_shard + dp_shard) * d.context + cp) * d.tensor + tp;
}

int Mesh::data_index(int rank) const {
  const Coordinates at = coordinates(rank);
  return at.dp_replicate * degrees_.data_shard + at.dp_shard;
}

int Mesh::expert_replicas() const {
  const int replica_ranks = degrees_.data_shard * degrees_.context * degrees_.tensor;
  return replica_ranks % (degrees_.expert * degrees_.expert_tensor) == 0 ? degrees_.data_replicate : 1;
}

RankSteps Mesh::steps(Group group) const {
  const Degrees& d = degrees_;
  const int of_experts = d.expert_tensor * d.expert, expert_shards = d.expert_data() / expert_replicas();
  switch (group) {
    case Group::pp:
      return {d.stage_ranks(), d.pipeline};
    case Group::dp_replicate:
      return {d.tensor * d.context * d.data_shard, d.data_replicate};
    case Group::dp_shard:
      return {d.tensor * d.context, d.data_shard};
    case Group::cp:
      return {d.tensor, d.context};
    case Group::tp:
      return {1, d.tensor};
    case Group::edp:
      return {of_experts, d.expert_data()};
    case Group::ep:
      return {d.expert_tensor, d.expert};
    case Group::ep_relay:
      return {d.expert_tensor * (d.expert / d.expert_relay()), d.expert_relay()};
    case Group::ep_inner:
      return {d.expert_tensor, d.expert_relay() == 1 ? 1 : d.expert / d.expert_relay()};
    case Group::etp:
      return {1, d.expert_tensor};
    case Group::edp_shard:
      return {of_experts, expert_shards};
    case Group::edp_replicate:
      return {of_experts * expert_shards, expert_replicas()};
    case Group::dp_shard_cp:
      return {d.tensor, d.context * d.data_shard};
    case Group::tokens:
      return {1, d.stage_ranks()};
    case Group::world:
      return {1, d.world()};
    case Group::dp_island:
    case Group::edp_island:
    case Group::tied:
      fail("group {} is not decided by degrees alone", name_of(group));
  }
  return {};
}

std::vector<std::vector<int>> Mesh::groups(Group group) const {
  const RankSteps steps_of_group = steps(group);
  std::vector<std::vector<int>> result;
  // Megatron lists groups with the fastest fixed axis first. That is the order of their first ranks.
  for (int rank = 0; rank < world(); ++rank) {
    if (steps_of_group.place(rank) == 0) result.push_back(members(steps_of_group, rank));
  }
  return result;
}

std::vector<int> Mesh::group_of(Group group, int rank) const {
  require(rank >= 0 && rank < world(), "a rank lies in its world");
  return members(steps(group), rank);
}

std::vector<int> Mesh::island_of(Group shard_group, int rank, int size) const {
  const std::vector<int> group = group_of(shard_group, rank);
  require(size >= 1 && std::ssize(group) % size == 0, "islands divide their group");
  const auto place = std::ranges::find(group, rank) - group.begin();
  const auto first = group.begin() + place / size * size;
  return {first, first + size};
}

std::vector<int> Mesh::tied_of(int rank, std::span<const int> positions) const {
  const int here = coordinates(rank).pp, stage = degrees_.stage_ranks();
  if (std::ranges::find(positions, here) == positions.end()) return {rank};
  std::vector<int> ranks;
  for (const int position : positions) ranks.push_back(rank + (position - here) * stage);
  return ranks;
}

}  // namespace weft
