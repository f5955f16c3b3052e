// Verification of sharding: a plain description of what a rank holds of its stage, looked over before the first step
// for the mistakes that a run would not show: it would train on, with a parameter that nobody reduces, expert gradients
// summed over the wrong ranks, or rows that nobody steps.
//
// The description is filled from several sources (what segments declare, what units were formed, what the mesh says,
// what the optimizer was given), so that what one of them leaves out another brings to light.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/shard/ownership.h"
#include "parallel/shard/unit_layout.h"

namespace weft {

struct DescribedSegment {
  std::string name;
  std::vector<ParameterSpec> parameters;
  // What the model's sizes say the segment holds on this rank; 0 where it has no routed experts.
  std::int64_t expert_elements = 0;
};

struct DescribedUnit {
  std::string name;
  bool replicated = false;  // in no unit: all of it on every rank, without a layout
  bool whole = false;       // not sharded, as asked: a layout of one shard
  UnitLayout layout;
  std::vector<ParameterSpec> replicated_parameters = {};
  std::string group;              // over which it is sharded
  int group_ranks = 1;            // ranks of that group
  int group_index = 0;            // this rank's place in it
  std::vector<int> reduced_over;  // ranks over which its gradient is summed, ascending

  const std::vector<ParameterSpec>& parameters() const {
    return replicated ? replicated_parameters : layout.parameters;
  }
};

// A rule of an optimizer, as far as it matters where parameters lie.
struct DescribedRule {
  std::string name;
  bool whole_matrix = false;  // computes with whole matrices (orthogonalisation), not element by element
  bool operator==(const DescribedRule&) const = default;
};

struct StageDescription {
  int rank = 0, stage = 0;
  std::vector<DescribedSegment> segments;  // as they are now
  // Of the segments when units were formed.
  std::vector<ParameterSpec> formed_from;
  std::vector<DescribedUnit> units;
  std::map<std::string, int> stage_of_parameter;           // of all stages
  std::map<std::string, DescribedRule> rule_of_parameter;  // of this stage
  // Ranks of the stage that hold the same box of a parameter and see other tokens, ascending: over these and no others
  // its gradient must be summed. Those of parameters that every tensor rank holds are all ranks of the stage.
  std::vector<int> dense_holders, expert_holders, stage_ranks;
  // What the optimizer was given to step, where it was built.
  std::optional<std::vector<OwnedRange>> stepped;
};

enum class ShardingSeam : std::uint8_t {
  unmanaged,         // a parameter of a segment that is in no unit and not replicated: nobody would reduce it
  in_two_units,      // it would be gathered and stepped twice
  of_no_segment,     // a unit holds a parameter that nothing computes with
  late,              // added or changed after units were formed
  wrong_group,       // a gradient summed over other ranks than hold the parameter
  unmarked_experts,  // routed experts that do not carry the family of experts
  two_stages,        // a unit across the boundary of a pipeline stage
  dispatch,          // a unit across the boundary between dense parameters and routed experts
  two_optimizers,    // a unit of rules that need different layouts
  optimizer_rows,    // the optimizer steps rows that the rank does not own, or misses some
  shard_count,       // a layout for another number of ranks than its group has
};
std::string_view name_of(ShardingSeam seam);

struct ShardingFault {
  ShardingSeam seam;
  std::string message;  // one sentence naming parameter, unit, segment or ranks
};

// Empty when the sharding is sound.
std::vector<ShardingFault> find_sharding_faults(const StageDescription& description);

// Throws Error (failure) listing all faults.
void verify_sharding(const StageDescription& description);

}  // namespace weft
