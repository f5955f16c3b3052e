// Which rank stands where. Two grids over the same ranks:
//   dense   pp x dp_replicate x dp_shard x cp x tp
//   expert  pp x edp x ep x etp, carved out of dp x cp x tp, so that expert parallelism costs no ranks
// The last axis is the fastest. Pure arithmetic: nothing here starts a rank. The order of groups is that of Megatron's
// generator: rank = sum of index x stride, groups listed with the fixed index fastest first.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct Degrees {
  int pipeline = 1;
  int data_replicate = 1;
  int data_shard = 1;
  int context = 1;
  int tensor = 1;
  int expert = 1;
  int expert_tensor = 1;

  int data() const { return data_replicate * data_shard; }
  // Ranks of one pipeline stage.
  int stage_ranks() const { return data() * context * tensor; }
  int world() const { return pipeline * stage_ranks(); }
  int expert_data() const { return stage_ranks() / (expert * expert_tensor); }
  bool operator==(const Degrees&) const = default;
};

// Everything wrong with the degrees, one sentence each, with the arithmetic. Empty means they form a mesh.
std::vector<std::string> degree_errors(const Degrees& degrees, std::optional<int> world = std::nullopt);

// Groups that share work, by what they are for. `dp_shard` and `dp_replicate` are the two levels over which a dense
// unit is sharded and replicated; with context parallelism `dp_shard_cp` takes the place of the first, since context
// ranks see different tokens too; `edp_shard` and `edp_replicate` those of an expert unit (see Mesh::expert_replicas).
// `tokens` is every rank of a stage, which all see different tokens (the group of routing helpers). `world` is all.
// `dp_island` and `edp_island` are parts of a shard group, of a size that the unit says (Mesh::island_of); `tied` joins
// two ranks of a pipeline that hold copies of one parameter (Mesh::tied_of).
enum class Group : std::uint8_t {
  pp,
  dp_replicate,
  dp_shard,
  cp,
  tp,
  edp,
  ep,
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
std::string_view name_of(Group group);
// Each group that degrees alone decide.
inline constexpr std::array all_groups = {
    Group::pp,  Group::dp_replicate, Group::dp_shard,      Group::cp,          Group::tp,     Group::edp,  Group::ep,
    Group::etp, Group::edp_shard,    Group::edp_replicate, Group::dp_shard_cp, Group::tokens, Group::world};

struct Coordinates {
  int pp = 0, dp_replicate = 0, dp_shard = 0, cp = 0, tp = 0;
  int edp = 0, ep = 0, etp = 0;
  bool operator==(const Coordinates&) const = default;
};

class Mesh {
 public:
  // Throws Error (request) with everything wrong when the degrees do not form a mesh.
  explicit Mesh(const Degrees& degrees);

  const Degrees& degrees() const { return degrees_; }
  int world() const { return degrees_.world(); }
  Coordinates coordinates(int rank) const;
  // The rank at dense coordinates.
  int rank_at(int pp, int dp_replicate, int dp_shard, int cp, int tp) const;

  // Position among data-parallel ranks, 0 .. data()-1: which sequences a rank reads.
  int data_index(int rank) const;
  // Replicas of an expert unit's shards. When an expert group fits into one dense replica the expert data-parallel
  // group splits like the dense one; otherwise it is one shard group.
  int expert_replicas() const;

  // All groups of a kind; every rank is in exactly one.
  std::vector<std::vector<int>> groups(Group group) const;
  // The ranks of the group that holds `rank`, ascending in the group's own order.
  std::vector<int> group_of(Group group, int rank) const;
  // The `size` neighbours of a shard group among which `rank` is; `size` divides the group.
  std::vector<int> island_of(Group shard_group, int rank, int size) const;
  // The ranks of its pipeline at positions `first` and `second`, if `rank` is one of the two; otherwise it is alone.
  std::vector<int> tied_of(int rank, int first, int second) const;

 private:
  Degrees degrees_;
};

}  // namespace weft
