// Reshard timing solved: for each rank which units stay between two uses, when the others are gathered and when
// gradients are reduced, so that the step is short and no rank ever exceeds its budget. Candidates come from selecting
// (timing/select.h) and decoding (timing/decode.h) with different views of what room transfers need; the best is
// improved by a search that weighs single gaps anew; last, no fixed policy that fits the budget is better.
#pragma once

#include <cstdint>
#include <optional>

#include "parallel/pipeline/timing/fixed.h"
#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

struct SolveOptions {
  // One reduction of each unit at the end of its last microbatch: sums are made in the same order under every budget,
  // and results agree bit for bit.
  bool pin_reductions = false;
  // Ops looked at by all candidates and steps of the search together, the bound of its work. Not a time: all replicas
  // must come to the same plan. A few candidates are tried whatever it says.
  std::int64_t work = 6'000'000;
  int most_steps = 3000;       // of the search
  bool fixed_policies = true;  // try them as well
};

struct TimingSolution {
  TimingPlan plan;
  double makespan = 0;
  double compute_makespan = 0;       // of the schedule without gathers and reductions
  double lower_bound = 0;            // no plan is shorter, whatever the budget
  std::optional<FixedPolicy> fixed;  // the plan is this policy's
  int candidates = 0, steps = 0;     // tried
};

// A function of its arguments alone. Throws Error (request) where a budget is too small for any plan, naming the
// smallest that is not.
TimingSolution solve_timing(const TimingProblem& problem, const SolveOptions& options = {});

}  // namespace weft
