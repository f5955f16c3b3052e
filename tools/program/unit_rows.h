// Plain values of each shard unit, for the output of `weft units`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

struct UnitRow {
  int stage = 0;
  PlannedUnit unit;
  std::vector<ProgramCollective> moves = {};     // payloads of the unit's gathers and reductions
  std::string wrap = {};                         // how its family is wrapped; empty for replicated parameters
  std::map<UpdateGroup, UpdateRule> rules = {};  // rules that update its parameters; empty if frozen
  LiveBytes byte_steps = {};                     // of a step (live_integral)

  bool replicated() const { return unit.plan.replicated(); }
  std::int64_t parameters() const;  // without padding
  std::int64_t bytes() const;       // of all stored shards, padding included
  std::int64_t padding() const { return replicated() ? 0 : unit.layout.padding(); }
  bool whole() const { return replicated() || unit.layout.shards == 1; }
};

// Units of all stages, each as the stage's first rank holds it: parameters are those of the rank's tensor and expert
// slice.
std::vector<UnitRow> unit_rows(const ResolvedRun& run);

// "reshard_after_use", "window 2", "island 4": how long full parameters stay.
std::string residency_text(const UnitPolicy& policy);
// "last_microbatch", "each_microbatch", "every 3": when gradients are reduced.
std::string reduction_text(const UnitPolicy& policy);
// The whole policy of the unit in one sentence.
std::string policy_text(const UnitRow& row);

// Prints which rank owns which rows of every parameter, and whether every element is owned exactly once. Throws Error
// (failure) listing every element that is not.
void print_owners(const Config& config, bool json);

}  // namespace weft
