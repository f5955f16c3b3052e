// What `weft units` tells about each shard unit, as plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/plan/stage_plan.h"

namespace weft {

struct UnitRow {
  int stage = 0;
  PlannedUnit unit;
  std::vector<UnitCollective> moves = {};        // what gathers and reductions of the unit exchange
  std::string wrap = {};                         // how its family is wrapped; empty for replicated parameters
  std::map<UpdateGroup, UpdateRule> rules = {};  // that step its parameters; none when frozen

  bool replicated() const { return unit.plan.replicated(); }
  std::int64_t parameters() const;  // without padding
  std::int64_t bytes() const;       // of all stored shards, padding included
  std::int64_t padding() const { return replicated() ? 0 : unit.layout.padding(); }
  bool whole() const { return replicated() || unit.layout.shards == 1; }
};

// Units of all stages as the first rank of each stage holds them: parameters are those of its tensor and expert slice.
std::vector<UnitRow> unit_rows(const Config& config);

// "each_use", "window 2", "island 4": how long full parameters stay.
std::string residency_text(const UnitPolicy& policy);
// "last_microbatch", "each_microbatch", "every 3": when gradients are reduced.
std::string reduction_text(const UnitPolicy& policy);
// All of the unit's policy in a sentence.
std::string policy_text(const UnitRow& row);

// Prints for every parameter which rank owns which rows, and whether every element is owned exactly once. Throws Error
// (failure) with everything that is not.
void print_owners(const Config& config, bool json);

}  // namespace weft
