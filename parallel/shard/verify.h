// Verification of sharding. A plain description of a rank's part of its stage is checked before the first step for
// errors that a run would not show. Such a run would train on with unreduced parameters, with rows that no
// optimizer steps, or with expert gradients summed over the wrong ranks.
//
// The description has several sources: the segments' declarations, the formed units, the mesh, the rows given to the
// optimizer. An omission in one source thus shows in another.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "parallel/shard/ownership.h"
#include "parallel/shard/unit_layout.h"

namespace weft {

struct DescribedSegment {
  std::string name;
  std::vector<ParameterSpec> parameters;
  // Expected expert elements of the segment on this rank, from the model's sizes; 0 without routed experts.
  std::int64_t expert_elements = 0;
};

struct DescribedUnit {
  std::string name;
  bool replicated = false;  // in no unit: every rank holds all of it, without a layout
  bool whole = false;       // not sharded, on request: a layout of one shard
  UnitLayout layout;
  std::vector<ParameterSpec> replicated_parameters = {};
  std::string group;              // the group over which it is sharded
  int group_ranks = 1;            // ranks of that group
  int group_index = 0;            // this rank's index in that group
  std::vector<int> reduced_over;  // ranks over which its gradient is summed, ascending

  const std::vector<ParameterSpec>& parameters() const {
    return replicated ? replicated_parameters : layout.parameters;
  }
};

// The properties of an optimizer's rule that depend on the placement of parameters.
struct DescribedRule {
  std::string name;
  bool whole_matrix = false;  // computes with whole matrices (orthogonalisation), not element by element
  bool operator==(const DescribedRule&) const = default;
};

struct StageDescription {
  int rank = 0, stage = 0;
  std::vector<DescribedSegment> segments;  // their present state
  // Parameters of the segments when units were formed.
  std::vector<ParameterSpec> formed_from;
  std::vector<DescribedUnit> units;
  std::map<std::string, int> stage_of_parameter;           // of all stages
  std::map<std::string, DescribedRule> rule_of_parameter;  // of this stage
  // Ranks of the stage that hold the same box of a parameter and process other tokens, ascending. The parameter's
  // gradient must be summed over exactly these ranks: dense_holders for dense parameters, expert_holders for experts.
  // For replicated parameters that every tensor rank holds, they are all ranks of the stage (stage_ranks).
  std::vector<int> dense_holders, expert_holders, stage_ranks;
  // Rows given to the optimizer; nothing if no optimizer was built.
  std::optional<std::vector<OwnedRange>> stepped;
};

enum class ShardingSeam : std::uint8_t {
  unmanaged,         // a segment's parameter in no unit and not replicated: it would not be reduced
  in_two_units,      // a parameter in two units: it would be gathered and stepped twice
  of_no_segment,     // a unit holds a parameter that no segment computes with
  late,              // a parameter added or changed after units were formed
  wrong_group,       // a gradient summed over ranks other than the parameter's holders
  unmarked_experts,  // routed experts without the family of experts
  two_stages,        // a unit across the boundary of a pipeline stage
  dispatch,          // a unit across the boundary between dense parameters and routed experts
  two_optimizers,    // a unit with rules that need different layouts
  optimizer_rows,    // the optimizer steps rows that the rank does not own, or misses owned rows
  shard_count,       // a layout with a number of shards other than its group's number of ranks
};
constexpr auto enum_names(ShardingSeam) {
  return name_list("unmanaged", "in_two_units", "of_no_segment", "late", "wrong_group", "unmarked_experts",
                   "two_stages", "dispatch", "two_optimizers", "optimizer_rows", "shard_count");
}

struct ShardingFault {
  ShardingSeam seam;
  std::string message;  // one sentence naming parameter, unit, segment or ranks
};

// Empty if the sharding is sound.
std::vector<ShardingFault> find_sharding_faults(const StageDescription& description);

// Throws Error (failure) listing all faults.
void verify_sharding(const StageDescription& description);

// Compares the rows that a rank owns with the rows that its optimizer was given to step. One sentence for each run of
// rows that is stepped but not owned, owned but not stepped, or stepped twice. Groups, rules, ranks and replicas are
// not compared.
std::vector<std::string> row_differences(std::span<const OwnedRange> owned, std::span<const OwnedRange> stepped);

}  // namespace weft
