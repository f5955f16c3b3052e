// Reshard timing by a rule instead of a solution: the policies of other systems, as a TimingPlan. They are the
// baselines of the solver and the last candidates of its search.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

struct FixedPolicy {
  enum class Residency : std::uint8_t {
    each_use,
    visit,    // kept while consecutive ops stay on the unit's stage
    window,   // kept while the unit's stage is one of the next `count` different stages
    buffers,  // units share `count` buffers in turn: kept until another unit needs the buffer, gathered when it is free
              // again
    step
  };
  enum class Reduction : std::uint8_t { each_use, visit, step };

  Residency residency = Residency::each_use;
  int count = 0;      // of stages or buffers
  int lookahead = 1;  // number of gathers by which a gather is triggered ahead of its turn; not for buffers
  Reduction reduction = Reduction::step;
  // Reductions that may run beside the gradient being filled; -1: no limit.
  int outstanding = 1;

  bool operator==(const FixedPolicy&) const = default;
};

// All policies that differ for these ranks. Buffer counts are at most `most_buffers`, evenly spread. With
// `pin_reductions` only policies that reduce once.
std::vector<FixedPolicy> fixed_policies(const TimingProblem& problem, bool pin_reductions, int most_buffers);

// The plan of a rank under a policy; absent if the bytes that it reserves exceed the budget.
std::optional<TimingRankPlan> fixed_plan(const TimingRank& rank, const TimingTable& table, const FixedPolicy& policy);
// The plan of all ranks; absent if one of them does not fit.
std::optional<TimingPlan> fixed_plan(const TimingProblem& problem, const FixedPolicy& policy);

struct FixedTiming {
  FixedPolicy policy;
  TimingPlan plan;
  double makespan = 0;
};
// The shortest plan of all policies that fit and take less than `shorter_than` seconds, if there is one. Of equally
// short ones, that with the fewest byte-steps.
std::optional<FixedTiming> best_fixed_timing(const TimingProblem& problem, bool pin_reductions, int most_buffers,
                                             double shorter_than);

}  // namespace weft
