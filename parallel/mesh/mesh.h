// The positions of ranks. Two grids over the same ranks:
//   dense   pp x dp_replicate x dp_shard x cp x tp
//   expert  pp x edp x ep x etp, formed from the ranks of dp x cp x tp, so that expert parallelism needs no more ranks
// The last axis is the fastest. Pure arithmetic: nothing here starts a rank. The order of groups is that of Megatron's
// generator: rank = sum of index x stride, groups listed with the fixed index fastest first.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/enum_names.h"

namespace weft {

// The way of tokens to their experts. all_to_all: each choice's row goes to the rank of its expert. all_gather: every
// rank of an expert group gets all tokens of the group. hierarchical: each node gets one copy of a token with a choice
// there. Its ranks exchange the rows of choices (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.2).
enum class ExpertDispatch : std::uint8_t { all_to_all, all_gather, hierarchical };
constexpr auto enum_names(ExpertDispatch) {
  return name_list("all_to_all", "all_gather", "hierarchical");
}

struct Degrees {
  int pipeline = 1;
  int data_replicate = 1;
  int data_shard = 1;
  int context = 1;
  int tensor = 1;
  int expert = 1;
  int expert_tensor = 1;
  ExpertDispatch expert_dispatch = ExpertDispatch::all_to_all;
  int expert_nodes = 1;  // equal parts of an expert group that a hierarchical dispatch goes between

  int data() const { return data_replicate * data_shard; }
  // Ranks of one pipeline stage.
  int stage_ranks() const { return data() * context * tensor; }
  int world() const { return pipeline * stage_ranks(); }
  int expert_data() const { return stage_ranks() / (expert * expert_tensor); }
  // Ranks that pass whole tokens to each other before rows of choices are exchanged, or 1.
  int expert_relay() const {
    if (expert == 1 || expert_dispatch == ExpertDispatch::all_to_all) return 1;
    return expert_dispatch == ExpertDispatch::hierarchical ? expert_nodes : expert;
  }
  auto operator<=>(const Degrees&) const = default;
};

// The sizes of the axes by name.
struct NamedDegree {
  const char* name;
  int Degrees::*degree;
};
inline constexpr NamedDegree named_degrees[] = {{"pipeline", &Degrees::pipeline},
                                                {"data_replicate", &Degrees::data_replicate},
                                                {"data_shard", &Degrees::data_shard},
                                                {"context", &Degrees::context},
                                                {"tensor", &Degrees::tensor},
                                                {"expert", &Degrees::expert},
                                                {"expert_tensor", &Degrees::expert_tensor}};

// All errors of the degrees, one sentence each, with the arithmetic. Empty: the degrees form a mesh.
std::vector<std::string> degree_errors(const Degrees& degrees, std::optional<int> world = std::nullopt);

// Groups of ranks, by purpose. `dp_shard` and `dp_replicate` are the two levels over which a dense unit is sharded and
// replicated. With context parallelism `dp_shard_cp` replaces `dp_shard`, because context ranks process different
// tokens too. `edp_shard` and `edp_replicate` are the two levels of an expert unit (see Mesh::expert_replicas).
// `tokens` has all ranks of a stage; each processes different tokens (the group of routing helpers). `world` has all
// ranks. `dp_island` and `edp_island` are parts of a shard group, with a size set by the unit (Mesh::island_of). `tied`
// joins the ranks of a pipeline that hold copies of one parameter (Mesh::tied_of). `ep_relay` and `ep_inner` are the
// two levels of `ep` (Degrees::expert_relay): whole tokens pass inside the first, rows of choices inside the second.
// Both have one rank if no token is relayed.
enum class Group : std::uint8_t {
  pp,
  dp_replicate,
  dp_shard,
  cp,
  tp,
  edp,
  ep,
  ep_relay,
  ep_inner,
  etp,
  edp_shard,
  edp_replicate,
  dp_shard_cp,
  tokens,
  world,
  dp_island,
  edp_island,
  tied
};
constexpr auto enum_names(Group) {
  return name_list("pp", "dp_replicate", "dp_shard", "cp", "tp", "edp", "ep", "ep_relay", "ep_inner", "etp",
                   "edp_shard", "edp_replicate", "dp_shard_cp", "tokens", "world", "dp_island", "edp_island", "tied");
}
// The groups that follow from the degrees alone.
inline constexpr std::array all_groups = {
    Group::pp,          Group::dp_replicate, Group::dp_shard, Group::cp,  Group::tp,        Group::edp,
    Group::ep,          Group::ep_relay,     Group::ep_inner, Group::etp, Group::edp_shard, Group::edp_replicate,
    Group::dp_shard_cp, Group::tokens,       Group::world};

struct Coordinates {
  int pp = 0, dp_replicate = 0, dp_shard = 0, cp = 0, tp = 0;
  int edp = 0, ep = 0, etp = 0;
  bool operator==(const Coordinates&) const = default;
};

// The ranks of a group: a first one, first + stride, and so on, `count` of them. This gives all groups of a kind: a
// rank is at place rank / stride % count of its own group.
struct RankSteps {
  int stride = 1, count = 1;
  int place(int rank) const { return rank / stride % count; }
};

class Mesh {
 public:
  // Throws Error (request) with all errors if the degrees do not form a mesh.
  explicit Mesh(const Degrees& degrees);

  const Degrees& degrees() const { return degrees_; }
  int world() const { return degrees_.world(); }
  Coordinates coordinates(int rank) const;
  // The rank at dense coordinates.
  int rank_at(int pp, int dp_replicate, int dp_shard, int cp, int tp) const;

  // Position among data-parallel ranks, 0 .. data()-1. It selects the sequences that a rank reads.
  int data_index(int rank) const;
  // Number of replicas of an expert unit's shards. If an expert group fits into one dense replica, the expert
  // data-parallel group is split like the dense one; otherwise it is one shard group.
  int expert_replicas() const;

  // The steps of a group given by the degrees alone. Throws Error for islands and tied groups.
  RankSteps steps(Group group) const;
  // All groups of one kind; every rank is in exactly one group.
  std::vector<std::vector<int>> groups(Group group) const;
  // The ranks of the group that holds `rank`, ascending in the group's own order.
  std::vector<int> group_of(Group group, int rank) const;
  // The `size` neighbours in a shard group that include `rank`; `size` divides the group.
  std::vector<int> island_of(Group shard_group, int rank, int size) const;
  // The ranks of `rank`'s pipeline at `positions`, in their order, if `rank` is at one of them; otherwise `rank` alone.
  std::vector<int> tied_of(int rank, std::span<const int> positions) const;

 private:
  Degrees degrees_;
};

}  // namespace weft
