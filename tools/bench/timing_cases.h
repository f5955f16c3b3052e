// Problems of reshard timing, made of a schedule's order and plain numbers, for the bench and the tests. A chunk is a
// row of units with one op each. A forward, an input gradient and a weight gradient of a unit take 1 each.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/timing/problem.h"

namespace weft {

struct TimingCase {
  std::string_view schedule = "1f1b";
  OrderInput input = {};
  int units = 8;  // per rank, over all its chunks
  double gather_seconds = 2, reduce_seconds = 2;
  // Of one unit, in bytes.
  std::int64_t parameter_bytes = 10, gradient_bytes = 10;
  std::int64_t activation_bytes = 1;  // of one microbatch, from its forward to its (weight) gradient
  std::int64_t budget = 0;            // of every rank
  // Size and transfer time of the first stage's first unit (embedding) and the last stage's last unit (head), relative
  // to the other units.
  double embedding = 1, head = 1;
};

TimingProblem timing_problem(const TimingCase& shape);

// The same shape with a budget at `share` (0 .. 1) between the smallest budget with a plan and the bytes of all units
// and gradients at once.
TimingCase with_budget(TimingCase shape, double share);

// Schedules of 4 ranks x microbatches x budgets x costs, a third of them with a large embedding and head.
std::vector<TimingCase> timing_grid();

}  // namespace weft
