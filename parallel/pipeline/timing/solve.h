// Reshard timing solved: for each rank, which units stay between two uses, when the others are gathered and when
// gradients are reduced. The step is short, and no rank ever exceeds its budget. Of equal plans, that with fewer
// byte-steps is taken. Candidates come from selecting and decoding (timing/decode.h) under different views of the room
// that transfers need. A search that changes the weights of single gaps improves the best candidate. Last, fixed
// policies are tried: none that fits is better than the result.
#pragma once

#include <cstdint>
#include <optional>

#include "parallel/pipeline/timing/fixed.h"
#include "parallel/pipeline/timing/plan.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

struct SolveOptions {
  // One reduction of each unit, at the end of its last microbatch. Sums are then made in the same order under every
  // budget, and results agree bit for bit.
  bool pin_reductions = false;
  // Bound of the work: ops processed by all candidates and search steps together. It is not a time, because all
  // replicas must find the same plan. A few candidates are tried in any case.
  std::int64_t work = 6'000'000;
  bool fixed_policies = true;  // also try fixed policies
};

struct TimingSolution {
  TimingPlan plan;
  double makespan = 0;
  double compute_makespan = 0;       // seconds of the schedule without gathers and reductions
  double lower_bound = 0;            // seconds; no plan is shorter, whatever the budget
  std::optional<FixedPolicy> fixed;  // set if the plan is that of a fixed policy
  int candidates = 0, steps = 0;     // number tried
};

// Depends on its arguments alone. Throws Error (request) if a budget is too small for any plan, naming the smallest
// budget that is not.
TimingSolution solve_timing(const TimingProblem& problem, const SolveOptions& options = {});

}  // namespace weft
