// Reshard timing by a rule instead of a solution: what other systems do, in the terms of a TimingPlan. The baselines of
// the solver, and the last candidates of its search.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"
#include "parallel/pipeline/timing/table.h"

namespace weft {

struct FixedPolicy {
  enum class Residency : std::uint8_t {
    each_use,
    visit,    // while consecutive ops stay on the unit's stage
    window,   // while it is one of the next `count` different stages
    buffers,  // `count` buffers, unit by unit in turn: until another unit needs the same one, and gathered when it is
              // free again
    step
  };
  enum class Reduction : std::uint8_t { each_use, visit, step };

  Residency residency = Residency::each_use;
  int count = 0;      // stages or buffers
  int lookahead = 1;  // gathers ahead of its turn that a gather is triggered; not of buffers
  Reduction reduction = Reduction::step;
  // Reductions that may run beside the gradient being filled; -1: no limit.
  int outstanding = 1;

  bool operator==(const FixedPolicy&) const = default;
};
std::string name_of(const FixedPolicy& policy);

// All of them that mean something different for these ranks; buffer counts at most `most_buffers`, evenly spread. With
// `pin_reductions` those that reduce once.
std::vector<FixedPolicy> fixed_policies(const TimingProblem& problem, bool pin_reductions, int most_buffers);

// A rank under a policy, or nothing where the bytes that it reserves exceed the budget.
std::optional<TimingRankPlan> fixed_plan(const TimingRank& rank, const TimingTable& table, const FixedPolicy& policy);
// Of all ranks, or nothing where one does not fit.
std::optional<TimingPlan> fixed_plan(const TimingProblem& problem, const FixedPolicy& policy);

struct FixedTiming {
  FixedPolicy policy;
  TimingPlan plan;
  double makespan = 0;
};
// The shortest of all that fit and take less than `shorter_than`, if any does.
std::optional<FixedTiming> best_fixed_timing(const TimingProblem& problem, bool pin_reductions, int most_buffers,
                                             double shorter_than);

}  // namespace weft
